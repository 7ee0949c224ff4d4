"""Leadership changes of the generic driver: the machine is discarded, and rebuilt from its log."""

import asyncio
import errno
import gc

import pytest
from driver_scene import Driver, Scene, add, turn, wait
from tally import Tally

from moldau.broker.drivers.replicated import SLICE_RECORDS, UnavailableErrors
from moldau.model.errors import (
    CoordinatorLoadInProgress,
    KafkaError,
    NotController,
    NotCoordinator,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    StorageFailed,
    UnknownServerFailure,
)


def test_lost_leadership_fails_waiters_and_drops_effects() -> None:
    scene = Scene()

    async def act(driver: Driver) -> None:
        await driver.write(lambda machine: machine.decide_timer("session", 100))
        pending = [add(driver, 1), wait(driver, 50)]
        await turn()
        unwritten = add(driver, 2)
        await asyncio.sleep(0)
        driver.resign()
        for each in (*pending, unwritten):
            with pytest.raises(NotCoordinator):
                await each
        scene.log.commit()
        await asyncio.sleep(100)  # including timers
        assert scene.log.records == [1]
        assert not scene.effects
        assert not driver.is_leading
        with pytest.raises(NotCoordinator):
            await add(driver, 1)

    scene.run(act)


def test_new_term_rebuilds_the_machine_from_the_log_alone() -> None:
    scene = Scene()

    async def act(driver: Driver) -> None:
        lost = [add(driver, 7)]
        await turn()
        lost.append(add(driver, 8))
        await asyncio.sleep(0)  # decided, not written
        driver.resign()
        for each in lost:
            with pytest.raises(NotCoordinator):
                await each
        scene.log.records = [100, 200]  # the other leader's log has truncated ours and continued
        scene.log.high_watermark = 2
        await driver.lead()
        assert await driver.read(lambda machine: machine.numbers) == [100, 200]
        assert len(scene.machines) == 2
        response = add(driver, 3)
        await turn()
        assert scene.log.records == [100, 200, 3]
        scene.log.commit()
        assert await response == 303

    scene.run(act)


def test_replayed_but_uncommitted_records_are_not_served() -> None:
    scene = Scene(1, 2)
    scene.log.high_watermark = 1

    async def act(driver: Driver) -> None:
        read = asyncio.ensure_future(driver.read(lambda machine: machine.sum))
        await turn()
        assert not read.done()
        scene.log.commit()
        assert await read == 3

    scene.run(act)


def test_requests_are_rejected_during_the_replay() -> None:
    scene = Scene(*range(100))

    async def act(driver: Driver) -> None:
        with pytest.raises(NotCoordinator):
            await add(driver, 1)
        leading = asyncio.ensure_future(driver.lead())
        await asyncio.sleep(0.003)
        with pytest.raises(CoordinatorLoadInProgress):
            await add(driver, 1)
        await leading
        assert await driver.read(lambda machine: len(machine.numbers)) == 99 + 1

    scene.log.records.remove(13)
    scene.log.records.append(0)
    scene.run(act, leads=False)


def test_replay_is_discarded_when_leadership_is_lost_meanwhile() -> None:
    scene = Scene(*[1] * 100)

    async def act(driver: Driver) -> None:
        leading = asyncio.ensure_future(driver.lead())
        await asyncio.sleep(0.0035)
        driver.resign()
        await leading
        assert not driver.is_leading
        assert scene.log.chunks_read < 10
        with pytest.raises(NotCoordinator):
            await add(driver, 1)

    scene.run(act, leads=False)


def test_long_replay_yields_to_the_event_loop() -> None:
    scene = Scene(*[0] * (SLICE_RECORDS * 10))
    scene.log.chunk_records = SLICE_RECORDS * 10

    async def act(driver: Driver) -> None:
        async def count_turns() -> int:
            turns = 0
            while not driver.is_leading:
                await asyncio.sleep(0 if scene.log.chunks_read else 0.0005)
                turns += scene.log.chunks_read  # only those after the one chunk has been read
            return turns

        counting = asyncio.ensure_future(count_turns())
        await driver.lead()
        assert scene.log.chunks_read == 1
        assert await counting >= 10

    scene.run(act, leads=False)


def test_not_leader_error_of_the_log_ends_the_term() -> None:
    scene = Scene(errors=UnavailableErrors(lost=NotController))

    async def act(driver: Driver) -> None:
        scene.log.failure = NotLeaderOrFollower("epoch 7 has begun")
        response = add(driver, 1)
        with pytest.raises(NotController):
            await response
        assert not driver.is_leading

    scene.run(act)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), StorageFailed),
        (NotEnoughReplicas("one replica is in sync, two are needed"), NotEnoughReplicas),
        (ValueError("a number that has no place in its record"), UnknownServerFailure),
    ],
)
def test_failed_append_rejects_the_decision_and_keeps_the_leadership(
    error: Exception, expected: type[KafkaError]
) -> None:
    scene = Scene(5)

    async def act(driver: Driver) -> None:
        scene.log.failure = error
        response = add(driver, 1)
        with pytest.raises(expected, match=r"No space left|two are needed|see the broker.s log"):
            await response
        with pytest.raises(CoordinatorLoadInProgress):
            await add(driver, 1)
        await asyncio.sleep(0.1)
        assert await driver.read(lambda machine: machine.sum) == 5
        response = add(driver, 2)
        await turn()
        scene.log.commit()
        assert await response == 7

    scene.run(act)


@pytest.mark.proves("A1")
def test_failed_append_does_not_affect_later_decisions() -> None:
    scene = Scene()

    async def act(driver: Driver) -> None:
        waits, written = wait(driver, 50), add(driver, 1)
        await turn()
        assert scene.log.records == [1]
        scene.log.failure = ValueError("a number that has no place in its record")
        rejected = add(driver, 2)
        with pytest.raises(UnknownServerFailure):
            await rejected
        for each in (waits, written):
            with pytest.raises(NotCoordinator):
                await each

    scene.run(act)


def test_excess_waiting_requests_are_rejected() -> None:
    scene = Scene(pending_max=3)

    async def act(driver: Driver) -> None:
        pending = [add(driver, 1), add(driver, 1), wait(driver, 100)]
        await turn()
        with pytest.raises(CoordinatorLoadInProgress):
            await add(driver, 1)
        scene.log.commit()
        assert await asyncio.gather(*pending[:2]) == [1, 2]
        response = add(driver, 1)
        await turn()
        scene.log.commit()
        assert await response == 3

    scene.run(act)


# Bugs


def test_bug_in_a_decision_affects_only_its_request() -> None:
    scene = Scene(5)

    async def act(driver: Driver) -> None:
        with pytest.raises(ZeroDivisionError):
            await driver.write(lambda machine: machine.decide_add(1 // 0))
        assert await driver.read(lambda machine: machine.sum) == 5
        assert not scene.failures

    scene.run(act)


def test_bug_in_apply_ends_the_term_and_is_reported() -> None:
    scene = Scene(5)

    async def act(driver: Driver) -> None:
        waiting = wait(driver, 100)
        await turn()
        with pytest.raises(RuntimeError, match="cannot be added"):
            await add(driver, 13)
        with pytest.raises(NotCoordinator):
            await waiting
        assert isinstance(scene.failures[0], RuntimeError)
        await turn()
        assert scene.log.records == [5]

    scene.run(act)


def test_bug_in_a_timer_ends_the_term_and_is_reported() -> None:
    scene = Scene()

    async def act(driver: Driver) -> None:
        await driver.write(lambda machine: machine.decide_timer("broken", 10))
        await asyncio.sleep(0.1)
        assert isinstance(scene.failures[0], RuntimeError)
        assert not driver.is_leading

    scene.run(act)


def test_failed_replay_is_reported() -> None:
    scene = Scene(13)

    async def act(driver: Driver) -> None:
        with pytest.raises(RuntimeError):
            await driver.lead()
        assert not driver.is_leading
        with pytest.raises(NotCoordinator):
            await add(driver, 1)

    scene.run(act, leads=False)


# Observers


class RecordingObserver:
    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int]] = []

    def applied(self, machine: Tally, end_offset: int) -> None:
        self.calls.append(("applied", machine.sum, end_offset))

    def committed(self, end_offset: int) -> None:
        self.calls.append(("committed", 0, end_offset))

    def discarded(self) -> None:
        self.calls.append(("discarded", 0, 0))


def test_observer_is_notified_of_applied_and_committed_records() -> None:
    watcher = RecordingObserver()
    scene = Scene(5, observer=watcher)

    async def act(driver: Driver) -> None:
        assert watcher.calls == [("applied", 5, 1), ("committed", 0, 1)]
        response = add(driver, 2)
        await turn()
        scene.log.commit()
        assert watcher.calls[2:] == [("applied", 7, 2), ("committed", 0, 1), ("committed", 0, 2)]
        assert await response == 7
        driver.resign()
        assert watcher.calls[-1] == ("discarded", 0, 0)

    scene.run(act)


@pytest.mark.proves("H6")
def test_resigned_driver_does_not_lead_again_after_a_failed_append() -> None:
    scene = Scene()

    async def act(driver: Driver) -> None:
        scene.log.failure = OSError(errno.ENOSPC, "No space left on device")
        rejected = add(driver, 1)
        await asyncio.sleep(0)
        driver.flush()  # the disk is full, so the machine must be rebuilt from the log
        driver.resign()
        with pytest.raises(StorageFailed):
            await rejected
        await turn()
        assert not driver.is_leading
        assert len(scene.machines) == 1

    scene.run(act)


def test_request_closed_early_leaves_no_unretrieved_exception() -> None:
    scene = Scene()

    async def act(driver: Driver) -> None:
        asking = driver.write(lambda machine: machine.decide_add(1))
        asking.send(None)  # as a connection starts a request: the rest is left to a task
        asking.close()  # which is cancelled before its first step
        driver.resign()
        gc.collect()
        await turn()  # an unretrieved exception would end the run

    scene.run(act)
