"""The command line: one file per command. torch is imported inside the commands, so that `--help` is fast."""
