"""Standard error is diverted while Spark starts: dropped on success, printed if the start fails."""

import subprocess

import pytest

from moldau.cli.standard_streams import divert_standard_error


def print_from_child(text: str) -> None:
    subprocess.run(["sh", "-c", f"echo {text} >&2"], check=True)


def test_diverted_output_of_child_processes_is_dropped_on_success(capfd: pytest.CaptureFixture[str]) -> None:
    with divert_standard_error() as restore:
        print_from_child("noise")
        restore()
        print_from_child("result")
    print_from_child("after")
    assert capfd.readouterr().err == "result\nafter\n"


def test_diverted_output_is_printed_when_the_start_fails(capfd: pytest.CaptureFixture[str]) -> None:
    def start() -> None:
        with divert_standard_error():
            print_from_child("cause")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        start()
    print_from_child("after")
    assert capfd.readouterr().err == "cause\nafter\n"


def test_later_failure_prints_nothing_that_was_diverted(capfd: pytest.CaptureFixture[str]) -> None:
    def run() -> None:
        with divert_standard_error() as restore:
            print_from_child("noise")
            restore()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        run()
    assert capfd.readouterr().err == ""
