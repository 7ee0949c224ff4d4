"""`python -m moldau` is the program `moldau`."""

from moldau.cli.main import main

main()
