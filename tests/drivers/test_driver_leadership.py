"""The generic driver when leadership comes and goes: the machine is thrown away and made again from its log."""

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


def test_whoever_waits_is_told_when_leadership_is_lost_and_nothing_is_answered_or_performed_later() -> None:
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
        await asyncio.sleep(100)  # timers included
        assert scene.log.records == [1]
        assert not scene.effects
        assert not driver.is_leading
        with pytest.raises(NotCoordinator):
            await add(driver, 1)

    scene.run(act)


def test_a_new_term_begins_with_a_new_machine_made_from_the_log_alone() -> None:
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
        scene.log.records = [100, 200]  # the other leader's log has cut ours and gone on
        scene.log.high_watermark = 2
        await driver.lead()
        assert await driver.read(lambda machine: machine.numbers) == [100, 200]
        assert len(scene.machines) == 2
        answer = add(driver, 3)
        await turn()
        assert scene.log.records == [100, 200, 3]
        scene.log.commit()
        assert await answer == 303

    scene.run(act)


def test_what_was_replayed_but_is_not_committed_is_not_told() -> None:
    scene = Scene(1, 2)
    scene.log.high_watermark = 1

    async def act(driver: Driver) -> None:
        read = asyncio.ensure_future(driver.read(lambda machine: machine.sum))
        await turn()
        assert not read.done()
        scene.log.commit()
        assert await read == 3

    scene.run(act)


def test_requests_are_refused_while_the_log_is_replayed() -> None:
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


def test_a_replay_that_is_overtaken_by_the_loss_of_leadership_comes_to_nothing() -> None:
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


def test_a_long_replay_lets_the_loop_turn() -> None:
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


def test_a_log_that_says_we_no_longer_lead_ends_the_term() -> None:
    scene = Scene(errors=UnavailableErrors(lost=NotController))

    async def act(driver: Driver) -> None:
        scene.log.refuses = NotLeaderOrFollower("epoch 7 has begun")
        answer = add(driver, 1)
        with pytest.raises(NotController):
            await answer
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
def test_a_log_that_cannot_be_written_now_costs_the_decision_and_not_the_leadership(
    error: Exception, expected: type[KafkaError]
) -> None:
    scene = Scene(5)

    async def act(driver: Driver) -> None:
        scene.log.refuses = error
        answer = add(driver, 1)
        with pytest.raises(expected, match=r"No space left|two are needed|see the broker.s log"):
            await answer
        with pytest.raises(CoordinatorLoadInProgress):
            await add(driver, 1)
        await asyncio.sleep(0.1)
        assert await driver.read(lambda machine: machine.sum) == 5
        answer = add(driver, 2)
        await turn()
        scene.log.commit()
        assert await answer == 7

    scene.run(act)


@pytest.mark.proves("A1")
def test_a_decision_that_cannot_be_written_is_not_held_against_others() -> None:
    scene = Scene()

    async def act(driver: Driver) -> None:
        waits, written = wait(driver, 50), add(driver, 1)
        await turn()
        assert scene.log.records == [1]
        scene.log.refuses = ValueError("a number that has no place in its record")
        refused = add(driver, 2)
        with pytest.raises(UnknownServerFailure):
            await refused
        for each in (waits, written):
            with pytest.raises(NotCoordinator):
                await each

    scene.run(act)


def test_too_many_waiting_requests_are_refused() -> None:
    scene = Scene(pending_max=3)

    async def act(driver: Driver) -> None:
        pending = [add(driver, 1), add(driver, 1), wait(driver, 100)]
        await turn()
        with pytest.raises(CoordinatorLoadInProgress):
            await add(driver, 1)
        scene.log.commit()
        assert await asyncio.gather(*pending[:2]) == [1, 2]
        answer = add(driver, 1)
        await turn()
        scene.log.commit()
        assert await answer == 3

    scene.run(act)


# Our own mistakes


def test_a_bug_in_deciding_harms_nobody_else() -> None:
    scene = Scene(5)

    async def act(driver: Driver) -> None:
        with pytest.raises(ZeroDivisionError):
            await driver.write(lambda machine: machine.decide_add(1 // 0))
        assert await driver.read(lambda machine: machine.sum) == 5
        assert not scene.failures

    scene.run(act)


def test_a_bug_in_applying_ends_the_term_and_is_told() -> None:
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


def test_a_bug_in_a_timer_ends_the_term_and_is_told() -> None:
    scene = Scene()

    async def act(driver: Driver) -> None:
        await driver.write(lambda machine: machine.decide_timer("broken", 10))
        await asyncio.sleep(0.1)
        assert isinstance(scene.failures[0], RuntimeError)
        assert not driver.is_leading

    scene.run(act)


def test_a_replay_that_fails_is_told_to_whoever_leads() -> None:
    scene = Scene(13)

    async def act(driver: Driver) -> None:
        with pytest.raises(RuntimeError):
            await driver.lead()
        assert not driver.is_leading
        with pytest.raises(NotCoordinator):
            await add(driver, 1)

    scene.run(act, leads=False)


# Observers


class Watcher:
    def __init__(self) -> None:
        self.heard: list[tuple[str, int, int]] = []

    def applied(self, machine: Tally, end_offset: int) -> None:
        self.heard.append(("applied", machine.sum, end_offset))

    def committed(self, end_offset: int) -> None:
        self.heard.append(("committed", 0, end_offset))

    def discarded(self) -> None:
        self.heard.append(("discarded", 0, 0))


def test_an_observer_hears_what_is_applied_and_later_that_it_is_committed() -> None:
    watcher = Watcher()
    scene = Scene(5, observer=watcher)

    async def act(driver: Driver) -> None:
        assert watcher.heard == [("applied", 5, 1), ("committed", 0, 1)]
        answer = add(driver, 2)
        await turn()
        scene.log.commit()
        assert watcher.heard[2:] == [("applied", 7, 2), ("committed", 0, 1), ("committed", 0, 2)]
        assert await answer == 7
        driver.resign()
        assert watcher.heard[-1] == ("discarded", 0, 0)

    scene.run(act)


@pytest.mark.proves("H6")
def test_who_resigns_while_the_log_refuses_does_not_lead_again() -> None:
    scene = Scene()

    async def act(driver: Driver) -> None:
        scene.log.refuses = OSError(errno.ENOSPC, "No space left on device")
        refused = add(driver, 1)
        await asyncio.sleep(0)
        driver.flush()  # finds the disk full, so the machine is to be made again from the log
        driver.resign()
        with pytest.raises(StorageFailed):
            await refused
        await turn()
        assert not driver.is_leading
        assert len(scene.machines) == 1

    scene.run(act)


def test_nobody_is_told_who_has_left_before_it_could_wait() -> None:
    scene = Scene()

    async def act(driver: Driver) -> None:
        asking = driver.write(lambda machine: machine.decide_add(1))
        asking.send(None)  # as a connection begins a request: what follows is left to a task
        asking.close()  # which is cancelled before its first step
        driver.resign()
        gc.collect()
        await turn()  # an exception that nobody heard would end the run

    scene.run(act)
