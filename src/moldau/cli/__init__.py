"""The command line, one program. `commands.py` is the table of its commands; each command group is one file."""
