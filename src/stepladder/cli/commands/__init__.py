"""The commands, one a file: `configure(parser)` and `run(options) -> exit code`."""
