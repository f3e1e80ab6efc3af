"""The commands, one a file. Each file has `configure(parser)` and `run(options) -> exit code`."""
