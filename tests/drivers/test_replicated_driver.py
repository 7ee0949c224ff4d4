"""The generic driver: nothing leaves before it is committed, and nothing survives the loss of leadership."""

import asyncio
import errno
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tally import MemoryLog, Tally

from moldau.broker.drivers.replicated import SLICE_RECORDS, Refusals, ReplicatedDriver
from moldau.machines.decision import Decision
from moldau.model.errors import (
    CoordinatorLoadInProgress,
    InvalidRequest,
    NotController,
    NotCoordinator,
    NotLeaderOrFollower,
    StorageFailed,
)
from moldau.testing.clock import SimulatedClock
from moldau.testing.loop import SimulatedLoop

Driver = ReplicatedDriver[Tally, int]


class Scene:
    """A driver on a log in memory, in virtual time."""

    def __init__(self, *numbers: int, **options: Any) -> None:
        self.log = MemoryLog(*numbers)
        self.effects: list[object] = []
        self.failures: list[BaseException] = []
        self.machines: list[Tally] = []
        self.options = options

    def new_machine(self) -> Tally:
        self.machines.append(Tally())
        return self.machines[-1]

    def run(self, act: Callable[[Driver], Coroutine[Any, Any, None]], *, leads: bool = True) -> None:
        loop = SimulatedLoop()

        async def main() -> None:
            driver = Driver(
                self.log,
                self.new_machine,
                SimulatedClock(loop.now_ms),
                perform=self.effects.append,
                failed=self.failures.append,
                **self.options,
            )
            if leads:
                await driver.lead()
            await act(driver)
            await driver.close()

        loop.run(main())


async def turn() -> None:
    """Let everything run that can run now."""
    for _ in range(5):
        await asyncio.sleep(0)


def add(driver: Driver, *numbers: int) -> asyncio.Task[int]:
    return asyncio.ensure_future(driver.write(lambda machine: machine.decide_add(*numbers)))


def wait(driver: Driver, mark: int) -> asyncio.Task[int]:
    ticket = driver.new_ticket()
    return asyncio.ensure_future(driver.write(lambda machine: machine.decide_wait(mark, ticket), ticket))


# Answers


def test_an_answer_is_given_once_its_records_are_committed() -> None:
    scene = Scene()

    async def act(driver: Driver) -> None:
        answer = add(driver, 3, 4)
        await turn()
        assert scene.log.records == [3, 4]
        assert not answer.done()
        scene.log.commit(1)
        await turn()
        assert not answer.done()  # half of a decision is none
        scene.log.commit(2)
        assert await answer == 7

    scene.run(act)


def test_a_decision_sees_what_was_decided_before_though_it_is_not_committed() -> None:
    scene = Scene()

    async def act(driver: Driver) -> None:
        answers = [add(driver, number) for number in (1, 2, 3)]
        await turn()
        scene.log.commit()
        assert await asyncio.gather(*answers) == [1, 3, 6]
        assert scene.machines[0].offsets == [0, 1, 2]

    scene.run(act)


def test_a_read_is_told_once_everything_it_saw_is_committed() -> None:
    scene = Scene(5)

    async def act(driver: Driver) -> None:
        assert await driver.read(lambda machine: machine.sum) == 5
        answer = add(driver, 1)
        await turn()
        read = asyncio.ensure_future(driver.read(lambda machine: machine.sum))
        await turn()
        assert not read.done()
        scene.log.commit()
        assert (await read, await answer) == (6, 6)

    scene.run(act)


def test_a_refusal_rests_on_what_was_applied_and_waits_like_any_answer() -> None:
    scene = Scene()

    async def act(driver: Driver) -> None:
        with pytest.raises(InvalidRequest):
            await add(driver, 1001)
        answer = add(driver, 1000)
        refused = add(driver, 1)
        await turn()
        assert not refused.done()
        scene.log.commit()
        assert await answer == 1000
        with pytest.raises(InvalidRequest, match="1001 is too much"):
            await refused

    scene.run(act)


def test_an_answer_without_records_needs_no_turn_of_the_loop_when_all_is_committed() -> None:
    scene = Scene(5)

    async def act(driver: Driver) -> None:
        coroutine = driver.write(lambda machine: machine.decide_add())
        with pytest.raises(StopIteration) as done:
            coroutine.send(None)
        assert done.value.value == 5

    scene.run(act)


def test_answers_are_given_in_the_order_of_their_decisions() -> None:
    scene = Scene()

    async def act(driver: Driver) -> None:
        order: list[int] = []
        for number in range(1, 6):
            add(driver, number).add_done_callback(lambda task: order.append(task.result()))
        await turn()
        scene.log.commit(3)
        await turn()
        assert order == [1, 3, 6]
        scene.log.commit()
        await turn()
        assert order == [1, 3, 6, 10, 15]

    scene.run(act)


# Waiting for others


def test_a_request_waits_under_its_ticket_until_another_one_answers_it() -> None:
    scene = Scene()

    async def act(driver: Driver) -> None:
        first, second = wait(driver, 10), wait(driver, 10)
        await turn()
        answer = add(driver, 10)
        await turn()
        assert not first.done()  # decided, but not committed
        scene.log.commit()
        assert [await each for each in (first, second, answer)] == [10, 10, 10]
        assert await wait(driver, 10) == 10  # answered at once

    scene.run(act)


def test_a_waiting_request_can_be_refused_by_another_one() -> None:
    scene = Scene()

    async def act(driver: Driver) -> None:
        waiting = wait(driver, 10)
        await turn()
        await driver.write(lambda machine: machine.decide_turn_away())
        with pytest.raises(InvalidRequest, match="go away"):
            await waiting

    scene.run(act)


def test_an_answer_for_a_request_that_has_gone_away_is_dropped() -> None:
    scene = Scene()

    async def act(driver: Driver) -> None:
        waiting, answer = wait(driver, 10), add(driver, 1)
        await turn()
        for gone in (waiting, answer):
            gone.cancel()
            with pytest.raises(asyncio.CancelledError):
                await gone
        more = add(driver, 10)
        await turn()
        scene.log.commit()
        assert await more == 11

    scene.run(act)


def test_a_request_that_nobody_could_ever_answer_is_a_bug() -> None:
    scene = Scene()

    async def act(driver: Driver) -> None:
        with pytest.raises(AssertionError, match="left without an answer"):
            await driver.write(lambda _: Decision[int, int]())

    scene.run(act)


# Group commit


def test_decisions_of_one_turn_go_to_the_log_in_one_append_each_of_them_whole() -> None:
    scene = Scene()

    async def act(driver: Driver) -> None:
        answers = [add(driver, 1, 2), add(driver), add(driver, 3)]
        await turn()
        assert scene.log.appends == [[[1, 2], [3]]]
        answers.append(add(driver, 4))
        await turn()
        assert scene.log.appends[1:] == [[[4]]]
        scene.log.commit()
        assert await asyncio.gather(*answers) == [3, 3, 6, 10]

    scene.run(act)


def test_the_next_offset_counts_what_is_decided_and_not_yet_written() -> None:
    scene = Scene(5, 6)

    async def act(driver: Driver) -> None:
        assert driver.next_offset == 2
        add(driver, 1, 1)
        await asyncio.sleep(0)
        assert (driver.next_offset, scene.log.end_offset) == (4, 2)
        driver.flush()
        assert (driver.next_offset, scene.log.end_offset) == (4, 4)
        scene.log.commit()

    scene.run(act)


def test_somebody_else_may_write_to_the_log_after_a_flush_but_not_behind_the_drivers_back() -> None:
    scene = Scene()

    async def act(driver: Driver) -> None:
        answer = add(driver, 1)
        await asyncio.sleep(0)
        driver.flush()
        scene.log.records.append(0)
        scene.log.commit()
        assert await answer == 1
        answer = add(driver, 2)
        await asyncio.sleep(0)
        scene.log.records.append(0)
        with pytest.raises(NotCoordinator):
            await answer
        assert "behind its driver's back" in str(scene.failures[0])

    scene.run(act)


# Effects and timers


def test_effects_are_performed_in_order_once_they_are_committed() -> None:
    scene = Scene()

    async def act(driver: Driver) -> None:
        add(driver, 1)
        add(driver, 2)
        await turn()
        assert not scene.effects
        scene.log.commit(1)
        assert scene.effects == [("added", 1)]
        scene.log.commit(2)
        assert scene.effects == [("added", 1), ("added", 3)]

    scene.run(act)


def test_a_timer_that_is_due_decides_and_its_effects_wait_for_the_commit() -> None:
    scene = Scene()

    async def act(driver: Driver) -> None:
        began_ms = asyncio.get_running_loop().time() * 1000
        await driver.write(lambda machine: machine.decide_timer("rebalance", 500))
        await asyncio.sleep(0.499)
        assert not scene.log.records
        await asyncio.sleep(0.002)
        assert scene.log.records == [-1]
        assert not scene.effects
        scene.log.commit()
        assert scene.effects == [("rebalance", pytest.approx(began_ms + 500))]

    scene.run(act)


def test_a_timer_is_moved_by_setting_it_again_and_cancelled() -> None:
    scene = Scene()

    async def act(driver: Driver) -> None:
        await driver.write(lambda machine: machine.decide_timer("session", 500))
        await driver.write(lambda machine: machine.decide_timer("other", 100))
        await driver.write(lambda machine: machine.decide_timer("session", 900))
        await driver.write(lambda machine: machine.decide_timer("other", None))
        await asyncio.sleep(0.8)
        assert not scene.log.records
        await asyncio.sleep(0.2)
        assert scene.log.records == [-1]

    scene.run(act)


def test_whoever_is_elected_arms_the_timers_it_needs() -> None:
    scene = Scene()

    async def act(driver: Driver) -> None:
        await asyncio.sleep(61)
        assert scene.log.records == [-1]
        assert driver.is_leading

    scene.run(act)


# Leadership


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
        lost = add(driver, 7)
        await turn()
        driver.resign()
        with pytest.raises(NotCoordinator):
            await lost
        scene.log.records = [100, 200]  # the other leader's log has cut ours and gone on
        scene.log.high_watermark = 2
        await driver.lead()
        assert await driver.read(lambda machine: machine.numbers) == [100, 200]
        assert len(scene.machines) == 2

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
    scene = Scene(refusals=Refusals(lost=NotController))

    async def act(driver: Driver) -> None:
        scene.log.refuses = NotLeaderOrFollower("epoch 7 has begun")
        answer = add(driver, 1)
        with pytest.raises(NotController):
            await answer
        assert not driver.is_leading

    scene.run(act)


def test_a_log_that_cannot_be_written_costs_the_decision_and_not_the_machine() -> None:
    scene = Scene(5)

    async def act(driver: Driver) -> None:
        scene.log.refuses = OSError(errno.ENOSPC, "No space left on device")
        answer = add(driver, 1)
        with pytest.raises(StorageFailed, match="No space left"):
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
