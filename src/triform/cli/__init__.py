"""The command line: one file a command, torch imported inside the command so that `--help` answers at once."""
