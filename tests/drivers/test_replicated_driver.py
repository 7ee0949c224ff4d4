"""The generic driver: no response or effect before its records are committed."""

import asyncio

import pytest
from driver_scene import Driver, Scene, add, turn, wait

from moldau.machines.decision import REQUESTER, Decision, Ticket, respond
from moldau.model.errors import (
    InvalidRequest,
    NotCoordinator,
)

# Responses


def test_response_waits_for_the_commit_of_its_records() -> None:
    scene = Scene()

    async def act(driver: Driver) -> None:
        response = add(driver, 3, 4)
        await turn()
        assert scene.log.records == [3, 4]
        assert not response.done()
        scene.log.commit(1)
        await turn()
        assert not response.done()  # half of a decision is none
        scene.log.commit(2)
        assert await response == 7

    scene.run(act)


def test_decision_sees_earlier_uncommitted_decisions() -> None:
    scene = Scene()

    async def act(driver: Driver) -> None:
        responses = [add(driver, number) for number in (1, 2, 3)]
        await turn()
        scene.log.commit()
        assert await asyncio.gather(*responses) == [1, 3, 6]
        assert scene.machines[0].offsets == [0, 1, 2]

    scene.run(act)


def test_read_waits_for_the_commit_of_everything_it_saw() -> None:
    scene = Scene(5)

    async def act(driver: Driver) -> None:
        assert await driver.read(lambda machine: machine.sum) == 5
        response = add(driver, 1)
        await turn()
        read = asyncio.ensure_future(driver.read(lambda machine: machine.sum))
        await turn()
        assert not read.done()
        scene.log.commit()
        assert (await read, await response) == (6, 6)

    scene.run(act)


def test_error_waits_for_the_commit_of_the_state_it_depends_on() -> None:
    scene = Scene()

    async def act(driver: Driver) -> None:
        with pytest.raises(InvalidRequest):
            await add(driver, 1001)
        response = add(driver, 1000)
        rejected = add(driver, 1)
        await turn()
        assert not rejected.done()
        scene.log.commit()
        assert await response == 1000
        with pytest.raises(InvalidRequest, match="1001 is too much"):
            await rejected

    scene.run(act)


def test_read_of_committed_state_responds_in_the_same_iteration() -> None:
    scene = Scene(5)

    async def act(driver: Driver) -> None:
        coroutine = driver.write(lambda machine: machine.decide_add())
        with pytest.raises(StopIteration) as done:
            coroutine.send(None)
        assert done.value.value == 5

    scene.run(act)


def test_decide_now_works_only_on_committed_state() -> None:
    scene = Scene(5)

    async def act(driver: Driver) -> None:
        now = driver.decide_now(lambda machine: respond(machine.sum))
        assert now is not None
        assert now.responses == {REQUESTER: 5}
        assert driver.decide_now(lambda _: None) is None
        assert driver.decide_now(lambda _: respond(0, records=[1])) is None
        assert driver.decide_now(lambda _: respond(0, effects=["a call"])) is None
        assert driver.decide_now(lambda _: Decision(responses={REQUESTER: InvalidRequest("no")})) is None
        assert driver.decide_now(lambda _: Decision(responses={Ticket(7): 1})) is None
        response = add(driver, 1)
        await turn()
        assert driver.decide_now(lambda machine: respond(machine.sum)) is None  # it depends on uncommitted records
        scene.log.commit()
        assert await response == 6

    scene.run(act)


def test_responses_keep_the_order_of_decisions() -> None:
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


# Waiting requests


def test_waiting_request_gets_the_response_of_a_later_decision() -> None:
    scene = Scene()

    async def act(driver: Driver) -> None:
        first, second = wait(driver, 10), wait(driver, 10)
        await turn()
        response = add(driver, 10)
        await turn()
        assert not first.done()  # decided, but not committed
        scene.log.commit()
        assert [await each for each in (first, second, response)] == [10, 10, 10]
        assert await wait(driver, 10) == 10  # at once

    scene.run(act)


def test_waiting_request_can_be_rejected_by_a_later_decision() -> None:
    scene = Scene()

    async def act(driver: Driver) -> None:
        waiting = wait(driver, 10)
        await turn()
        await driver.write(lambda machine: machine.decide_turn_away())
        with pytest.raises(InvalidRequest, match="go away"):
            await waiting

    scene.run(act)


def test_response_to_a_cancelled_request_is_dropped() -> None:
    scene = Scene()

    async def act(driver: Driver) -> None:
        waiting, response = wait(driver, 10), add(driver, 1)
        await turn()
        for gone in (waiting, response):
            gone.cancel()
            with pytest.raises(asyncio.CancelledError):
                await gone
        more = add(driver, 10)
        await turn()
        scene.log.commit()
        assert await more == 11

    scene.run(act)


def test_request_without_response_or_ticket_is_a_bug() -> None:
    scene = Scene()

    async def act(driver: Driver) -> None:
        with pytest.raises(AssertionError, match="has no response"):
            await driver.write(lambda _: Decision[int, int]())

    scene.run(act)


# Group commit


def test_decisions_of_one_iteration_are_one_append() -> None:
    scene = Scene()

    async def act(driver: Driver) -> None:
        responses = [add(driver, 1, 2), add(driver), add(driver, 3)]
        await turn()
        assert scene.log.appends == [[[1, 2], [3]]]
        responses.append(add(driver, 4))
        await turn()
        assert scene.log.appends[1:] == [[[4]]]
        scene.log.commit()
        assert await asyncio.gather(*responses) == [3, 3, 6, 10]

    scene.run(act)


def test_next_offset_includes_unwritten_decisions() -> None:
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


def test_foreign_append_is_allowed_only_after_a_flush() -> None:
    scene = Scene()

    async def act(driver: Driver) -> None:
        response = add(driver, 1)
        await asyncio.sleep(0)
        driver.flush()
        scene.log.records.append(0)
        scene.log.commit()
        assert await response == 1
        response = add(driver, 2)
        await asyncio.sleep(0)
        scene.log.records.append(0)
        with pytest.raises(NotCoordinator):
            await response
        assert "without its driver" in str(scene.failures[0])

    scene.run(act)


# Effects and timers


def test_effects_run_in_order_after_the_commit() -> None:
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


def test_due_timer_decides_and_its_effects_wait_for_the_commit() -> None:
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


def test_timer_can_be_moved_and_cancelled() -> None:
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


def test_election_sets_the_initial_timers() -> None:
    scene = Scene()

    async def act(driver: Driver) -> None:
        await asyncio.sleep(61)
        assert scene.log.records == [-1]
        assert driver.is_leading

    scene.run(act)
