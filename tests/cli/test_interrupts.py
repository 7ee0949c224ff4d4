"""Ctrl-C at any moment of a command that waits for a cluster: exit code 130, and nothing on standard error."""

import asyncio
import gc
import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from typer.testing import CliRunner

from moldau.cli.interrupts import INTERRUPTS, run_async
from moldau.cli.main import app
from moldau.node.ports.sockets import SocketNetwork

COMMANDS = [
    "topic list",
    "topic create t",
    "topic describe t",
    "config get topic t",
    "group list",
    "group describe g",
    "txn list",
    "quorum describe",
    "broker list",
    "cluster health",
    "partition elect-leaders --topic t",
    "consume t",
    "produce t",
]


class InterruptOnce:
    """A function whose first call is interrupted, before it begins or when its result is there and not used yet."""

    def __init__(self, function: Callable[..., Any], *, is_before: bool) -> None:
        self.calls = 0
        self._function, self._is_before = function, is_before

    def __get__(self, instance: object, _: type) -> Callable[..., Any]:
        return partial(self._call, instance)

    def _call(self, *arguments: Any, **options: Any) -> Any:
        self.calls += 1
        if self.calls == 1 and self._is_before:
            os.kill(os.getpid(), signal.SIGINT)
        result = self._function(*arguments, **options)
        if self.calls == 1 and not self._is_before:
            os.kill(os.getpid(), signal.SIGINT)
        return result


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("moment", ["before the first step", "when a coroutine is created"])
def test_interrupt_exits_with_130_and_drops_no_coroutine(
    command: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_before = moment == "before the first step"
    owner, name = (asyncio.BaseEventLoop, "create_task") if is_before else (SocketNetwork, "connect")
    interrupted = InterruptOnce(getattr(owner, name), is_before=is_before)
    monkeypatch.setattr(owner, name, interrupted)
    result = CliRunner().invoke(app, [*command.split(), "-b", "127.0.0.1:1"], input="line\n")
    code, errors = result.exit_code, result.stderr
    del result  # its traceback refers to the dropped coroutines
    gc.collect()
    assert (code, errors, interrupted.calls > 0) == (130, "", True)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_interrupt_waits_for_the_cleanup_of_the_coroutine() -> None:
    events: list[str] = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            events.append("cleaned up")

    with INTERRUPTS.handled(), pytest.raises(KeyboardInterrupt):
        run_async(work())
    assert events == ["cleaned up"]


def test_interrupt_outside_a_coroutine_is_raised_at_once() -> None:
    with INTERRUPTS.handled(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_handler_of_the_calling_program_is_kept() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    try:
        with INTERRUPTS.handled():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIGINT]
