"""The device table's rows, by maker; every number has its source."""
