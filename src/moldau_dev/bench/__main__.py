"""`python -m moldau_dev.bench`: errors that a user can act on take one line, as in `moldau`."""

import sys

from moldau.cli.errors import explain
from moldau_dev.bench.command import app


def main() -> None:
    try:
        app(prog_name="python -m moldau_dev.bench")
    except Exception as error:
        complaint = explain(error)
        if complaint is None:
            raise
        print("error:", complaint, file=sys.stderr)
        sys.exit(complaint.exit_code)


if __name__ == "__main__":
    main()
