"""`python -m moldau_dev.bench`: errors that a user can act on take one line, as in `moldau`."""

import sys

from moldau.cli.errors import as_command_error
from moldau_dev.bench.command import app


def main() -> None:
    try:
        app(prog_name="python -m moldau_dev.bench")
    except Exception as error:
        shown = as_command_error(error)
        if shown is None:
            raise
        print("error:", shown, file=sys.stderr)
        sys.exit(shown.exit_code)


if __name__ == "__main__":
    main()
