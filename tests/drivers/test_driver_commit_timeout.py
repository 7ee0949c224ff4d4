"""A log that commits nothing for a while: waiters time out, and timers are deferred."""

import asyncio

import pytest
from driver_scene import Driver, Scene, add, turn, wait

from moldau.broker.drivers.commit_waiters import CommitTimeout
from moldau.broker.drivers.replicated import TIMER_RETRY_S, UnavailableErrors
from moldau.machines.decision import SetTimer, respond
from moldau.model.errors import CoordinatorNotAvailable, InvalidRequest

HELD_MS = 5_000.0


class TimeoutScene(Scene):
    """A driver with a commit timeout of five seconds; the test decides whether anything can be committed."""

    def __init__(self, *numbers: int) -> None:
        self.can_commit = True
        commit_timeout = CommitTimeout(lambda: HELD_MS, lambda: self.can_commit)
        super().__init__(
            *numbers, errors=UnavailableErrors(late=CoordinatorNotAvailable), commit_timeout=commit_timeout
        )


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def time_of_rejection(response: "asyncio.Future[int]") -> float:
    """Wait for the rejection of a request; return its time."""
    with pytest.raises(CoordinatorNotAvailable):
        await response
    return now_s()


@pytest.mark.proves("H2", part="too few in-sync replicas")
def test_each_waiter_times_out_at_its_own_deadline() -> None:
    scene = TimeoutScene(1)

    async def act(driver: Driver) -> None:
        began_s = now_s()
        first = add(driver, 1)
        await asyncio.sleep(2)
        second, read = add(driver, 1), asyncio.ensure_future(driver.read(lambda machine: machine.sum))
        assert await time_of_rejection(first) - began_s == pytest.approx(5)
        assert not second.done()
        assert await time_of_rejection(second) - began_s == pytest.approx(7)
        assert await time_of_rejection(read) - began_s == pytest.approx(7)
        third = add(driver, 1)
        assert await time_of_rejection(third) - began_s == pytest.approx(12)
        scene.log.commit()
        assert await driver.read(lambda machine: machine.sum) == 4

    scene.run(act)


@pytest.mark.proves("P3")
def test_timed_out_decision_stands_and_its_effects_follow_the_commit() -> None:
    scene = TimeoutScene()

    async def act(driver: Driver) -> None:
        early = add(driver, 1)
        await time_of_rejection(early)
        later = add(driver, 2)
        await turn()
        assert scene.effects == []
        scene.log.commit()
        assert await later == 3
        assert scene.effects == [("added", 1), ("added", 3)]

    scene.run(act)


def test_timed_out_waiter_releases_its_place() -> None:
    scene = TimeoutScene(1)
    scene.options["pending_max"] = 3

    async def act(driver: Driver) -> None:
        lost = add(driver, 1)
        reads = [asyncio.ensure_future(driver.read(lambda machine: machine.sum)) for _ in range(2)]
        await time_of_rejection(lost)
        for read in reads:
            await time_of_rejection(read)
        more = add(driver, 1)
        await turn()
        scene.log.commit()
        assert await more == 3

    scene.run(act)


def test_waiting_request_without_records_does_not_time_out() -> None:
    scene = TimeoutScene()

    async def act(driver: Driver) -> None:
        waiting = wait(driver, 10)
        await asyncio.sleep(30)
        response = add(driver, 10)
        await turn()
        decided_s = now_s()
        assert not waiting.done()
        assert await time_of_rejection(waiting) - decided_s == pytest.approx(5)
        await time_of_rejection(response)

    scene.run(act)


@pytest.mark.proves("H2", part="too few in-sync replicas")
def test_only_decisions_on_committed_state_respond_while_nothing_commits() -> None:
    scene = TimeoutScene(1)

    async def act(driver: Driver) -> None:
        scene.can_commit = False
        assert await driver.read(lambda machine: machine.sum) == 1
        await driver.write(lambda machine: machine.decide_timer("closing", 1_000))
        scene.can_commit = True
        added = add(driver, 1)
        await turn()
        scene.can_commit = False
        began_s = now_s()
        with pytest.raises(CoordinatorNotAvailable):
            await driver.read(lambda machine: machine.sum)
        with pytest.raises(CoordinatorNotAvailable):
            await add(driver, 1001)  # an error that depends on it, too
        assert now_s() == began_s
        scene.log.commit()
        assert await added == 2
        with pytest.raises(InvalidRequest):
            await add(driver, 1001)

    scene.run(act)


def test_timers_are_deferred_while_nothing_can_be_committed() -> None:
    scene = TimeoutScene()

    async def act(driver: Driver) -> None:
        await driver.write(lambda machine: machine.decide_timer("closing", 1_000))
        scene.can_commit = False
        await asyncio.sleep(20)
        assert scene.log.records == []
        scene.can_commit = True
        await asyncio.sleep(TIMER_RETRY_S + 0.1)
        assert scene.log.records == [-1]

    scene.run(act)


def test_deferred_timer_can_be_moved_and_ends_with_its_machine() -> None:
    scene = TimeoutScene()

    async def act(driver: Driver) -> None:
        await driver.write(lambda machine: machine.decide_timer("closing", 1_000))
        scene.can_commit = False
        await asyncio.sleep(1.5)
        await driver.write(lambda machine: machine.decide_timer("closing", 10_000))
        scene.can_commit = True
        await asyncio.sleep(9.5)
        assert scene.log.records == []
        await asyncio.sleep(1)
        assert scene.log.records == [-1]
        scene.log.commit()
        await driver.write(lambda machine: machine.decide_timer("broken", 100))
        scene.can_commit = False
        await asyncio.sleep(1)
        driver.resign()
        await asyncio.sleep(20)
        assert scene.failures == []

    scene.run(act)


def test_fast_path_sets_the_timers_of_a_decision_made_by_the_slow_path() -> None:
    scene = Scene()

    async def act(driver: Driver) -> None:
        assert driver.decide_now(lambda _: respond(0, timers=[SetTimer("closing", 1_000)])) is None
        await asyncio.sleep(1.1)
        assert scene.log.records == [-1]

    scene.run(act)
