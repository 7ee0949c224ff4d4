"""The load generator: a separate process, so that display and measurement do not disturb it."""

import gc
import multiprocessing
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

from moldau.cli.errors import CommandError

JOB_S_MAX: Final = 1200.0
STOP_S_MAX: Final = 5.0

Result = TypeVar("Result", covariant=True)


class Job(Protocol[Result]):
    """Work for the generator. Job and result are pickled."""

    def run(self) -> Result: ...


class Generator:
    """`with Generator() as generator: generator.run(job)`"""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def run(self, job: Job[Result]) -> Result:
        self._pipe.send(job)
        if not self._pipe.poll(JOB_S_MAX):
            raise CommandError(f"the load generator did not finish within {JOB_S_MAX:g} s")
        try:
            outcome, result = self._pipe.recv()
        except EOFError:
            raise CommandError("the load generator ended unexpectedly") from None
        if outcome == "failed":
            raise result
        return result  # type: ignore[no-any-return]  # the result of this job's `run`

    def close(self) -> None:
        self._pipe.close()
        self._process.join(STOP_S_MAX)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _work(pipe: "Connection[Any, Any]") -> None:
    while True:
        try:
            job: Job[Any] = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        gc.collect()
        gc.disable()  # a collection would be measured as latency of the broker
        try:
            pipe.send(("done", job.run()))
        except KeyboardInterrupt:
            return
        except Exception as error:
            pipe.send(("failed", error))
        finally:
            gc.enable()
