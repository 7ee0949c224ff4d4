"""Random events of brokers and controllers: no acknowledged record is lost, and the cluster recovers."""

from collections.abc import Callable

import pytest
from controller_model import BROKERS, Model
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.machines.metadata.cluster_view import MIN_ISR, UNCLEAN
from moldau.machines.metadata.elect_leaders import ElectionType

Event = Callable[[Model], object]

BROKER = st.sampled_from(BROKERS)
INDEX = st.integers(0, 2)
REPLICAS = st.lists(BROKER, min_size=1, max_size=3, unique=True)


def crash(model: Model, broker_id: int, is_noticed: bool) -> None:
    model.brokers[broker_id].is_up = False
    if is_noticed:
        model.fence(broker_id)


def on_broker(act: Callable[[Model, int], object]) -> st.SearchStrategy[Event]:
    return st.builds(lambda broker_id: lambda model: act(model, broker_id), BROKER)


def on_all_brokers(act: Callable[[Model, int], object]) -> st.SearchStrategy[Event]:
    return st.just(lambda model: [act(model, broker_id) for broker_id in BROKERS])


def on_index(act: Callable[[Model, int, int], object]) -> st.SearchStrategy[Event]:
    return st.builds(lambda index: lambda model: [act(model, broker_id, index) for broker_id in BROKERS], INDEX)


ORDINARY: list[st.SearchStrategy[Event]] = [
    st.just(Model.catch_up),
    on_broker(Model.learn),
    on_all_brokers(Model.learn),
    on_broker(Model.beat),
    on_all_brokers(Model.beat),
    st.builds(lambda b, i: lambda model: model.write(b, i), BROKER, INDEX),
    on_index(Model.write),
    st.builds(lambda b, i: lambda model: model.fetch(b, i), BROKER, INDEX),
    on_index(Model.fetch),
    st.builds(lambda b, i: lambda model: model.propose(b, i), BROKER, INDEX),
    on_index(Model.propose),
    st.builds(lambda b, i, w: lambda model: model.propose(b, i, without=w), BROKER, INDEX, BROKER),
]
FAULTS: list[st.SearchStrategy[Event]] = [
    st.builds(lambda b, n: lambda model: crash(model, b, n), BROKER, st.booleans()),
    st.builds(lambda b, d: lambda model: model.start(b, is_dirty=d), BROKER, st.booleans()),
    on_broker(lambda model, broker_id: model.start(broker_id, is_dirty=False)),
    on_broker(Model.stop),
    on_broker(Model.fence),
    on_broker(Model.unregister),
    st.just(Model.fail_over),
    st.builds(lambda n: lambda model: model.echo(n), st.integers(0, 5)),
    st.builds(lambda ms: lambda model: model.pass_time(ms), st.sampled_from([100.0, 3_000.0, 10_000.0, 40_000.0])),
]
REQUESTS: list[st.SearchStrategy[Event]] = [
    st.builds(lambda i, r: lambda model: model.move(i, r), INDEX, st.none() | REPLICAS),
    st.just(lambda model: model.elect(ElectionType.PREFERRED)),
    st.builds(lambda level: lambda model: model.switch(level), st.integers(0, 1)),
    st.builds(lambda n: lambda model: model.configure(MIN_ISR, n), st.sampled_from(["1", "2", "3"])),
]
LOSSY: list[st.SearchStrategy[Event]] = [
    st.just(lambda model: model.elect(ElectionType.UNCLEAN)),
    st.builds(lambda v: lambda model: model.configure(UNCLEAN, v), st.sampled_from(["true", "false"])),
]
EVENTS = st.lists(st.one_of(*ORDINARY, *ORDINARY, *FAULTS, *REQUESTS), max_size=80)
ALL_EVENTS = st.lists(st.one_of(*ORDINARY, *FAULTS, *REQUESTS, *LOSSY), max_size=60)


def play(model: Model, events: list[Event]) -> None:
    for event in events:
        event(model)
    model.heal()
    model.check_healed()


@pytest.mark.proves("H3")
@settings(max_examples=250, deadline=None)
@given(EVENTS)
def test_no_acknowledged_record_is_lost_and_all_partitions_recover(events: list[Event]) -> None:
    play(Model(), events)


@settings(max_examples=100, deadline=None)
@given(EVENTS)
def test_no_acknowledged_record_is_lost_without_eligible_replicas(events: list[Event]) -> None:
    play(Model(has_elr=False), events)


@pytest.mark.proves("H4")
@settings(max_examples=100, deadline=None)
@given(ALL_EVENTS)
def test_metadata_stays_consistent_where_loss_is_allowed(events: list[Event]) -> None:
    play(Model(), events)
