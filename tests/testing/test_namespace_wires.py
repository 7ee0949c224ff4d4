"""Network namespaces and their wires: a cut is silent, in one direction, and reversible."""

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from moldau_dev.chaos.namespaces import RUNNER, Wires

PORT = 9
CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 9), 0.5)
except TimeoutError:
    print("silence")
except ConnectionRefusedError:
    print("refused")
"""


@pytest.fixture(scope="module")
def wires() -> Iterator[Wires]:
    if not Wires.are_allowed():
        pytest.skip("this machine does not allow network namespaces")
    with Wires(2) as wires:
        yield wires


def response(wires: Wires, one: int, another: int) -> str:
    """Connect from one end to a port of another without a listener: refused if both directions are open."""
    if one == RUNNER:
        try:
            socket.create_connection((wires.address(another), PORT), 0.5)
        except TimeoutError:
            return "silence"
        except ConnectionRefusedError:
            return "refused"
    command = [*wires.command(one), sys.executable, "-c", CONNECT, wires.address(another)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_all_ends_reach_each_other(wires: Wires) -> None:
    assert {response(wires, one, other) for one in range(3) for other in range(3) if one != other} == {"refused"}


def test_cut_is_silent_and_does_not_affect_others(wires: Wires) -> None:
    wires.cut(1, 2)
    assert response(wires, 1, 2) == "silence"
    assert response(wires, 2, 1) == "silence", "the request arrives, the response is lost"
    assert response(wires, RUNNER, 1) == response(wires, RUNNER, 2) == "refused"
    wires.mend()
    assert response(wires, 1, 2) == "refused"


def test_ends_that_are_cut_off_together_still_reach_each_other(wires: Wires) -> None:
    wires.cut_off(1, 2)
    assert response(wires, 1, 2) == "refused"
    assert response(wires, RUNNER, 1) == response(wires, 2, RUNNER) == "silence"
    wires.mend()
    assert response(wires, RUNNER, 1) == "refused"
