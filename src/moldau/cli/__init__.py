"""The command line, one program."""
