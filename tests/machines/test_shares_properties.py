"""Share partitions: invariants over any sequence of fetches, acknowledgements, expiries, writes and leader changes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shares_scene import BACKOFF, LOCK_MS, SETTINGS, Scene

from moldau.machines.shares.acknowledgement import AcknowledgeType, OffsetRange

pytestmark = pytest.mark.proves("C8")

MEMBERS = ("m1", "m2", "m3")

members = st.sampled_from(MEMBERS)
small = st.integers(1, 12)
offsets = st.integers(0, 60)
kinds = st.sampled_from(list(AcknowledgeType))
steps = st.one_of(
    st.tuples(st.just("fetch"), members, small, small, st.booleans()),
    st.tuples(st.just("acknowledge"), members, offsets, st.integers(0, 8), kinds),
    st.tuples(st.just("acknowledge"), members, offsets, st.integers(0, 8), st.just(AcknowledgeType.ACCEPT)),
    st.tuples(st.just("begin_write")),
    st.tuples(st.just("bury"), small),
    st.tuples(st.just("end_write"), st.booleans(), st.booleans()),
    st.tuples(st.just("advance"), st.floats(1, 1.5 * LOCK_MS)),
    st.tuples(st.just("close_session"), members),
    st.tuples(st.just("delete_records"), offsets),
    st.tuples(st.just("change_leader"), st.booleans()),
)


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[OffsetRange], int]:
    """Batches with gaps between them."""
    batches, offset = [], 0
    for _ in range(draw(st.integers(1, 12))):
        first = offset + draw(st.sampled_from((0, 0, 0, 1, 3)))
        offset = first + draw(st.integers(1, 6))
        batches.append(OffsetRange(first, offset - 1))
    return batches, offset + draw(st.integers(0, 2))


@settings(max_examples=150)
@given(logs(), st.lists(steps, max_size=40), st.booleans(), st.booleans())
def test_every_record_is_delivered_until_it_is_done(
    log: tuple[list[OffsetRange], int], events: list[tuple[object, ...]], has_backoff: bool, has_dead_letters: bool
) -> None:
    backoff = BACKOFF if has_backoff else SETTINGS.backoff
    scene = Scene(*log, settings=SETTINGS._replace(backoff=backoff, has_dead_letters=has_dead_letters))
    for event in events:
        _step(scene, event)
    scene.drain()


@settings(max_examples=150)
@given(logs(), st.lists(steps, max_size=60), st.lists(st.sampled_from((None, 1, 2)), min_size=80, max_size=80))
def test_records_of_a_key_are_delivered_one_at_a_time_and_in_order(
    log: tuple[list[OffsetRange], int], events: list[tuple[object, ...]], keys: list[int | None]
) -> None:
    options = SETTINGS._replace(is_ordered=True, backoff=BACKOFF, has_dead_letters=True)
    scene = Scene(*log, settings=options)
    scene.keys = {offset: keys[offset % len(keys)] for offset in scene.records}
    for event in events:
        _step(scene, event)
    scene.drain()


def _step(scene: Scene, event: tuple[object, ...]) -> None:
    match event:
        case ("fetch", str(member), int(records_max), int(batches_max), bool(is_strict)):
            scene.fetch(member, records_max, batches_max, is_strict=is_strict)
        case ("acknowledge", str(member), int(first), int(count), AcknowledgeType() as kind):
            scene.acknowledge(member, [each for each in range(first, first + count) if each in scene.records], kind)
        case ("bury", int(count)):
            scene.bury(count)
        case ("begin_write",):
            scene.begin_write()
        case ("end_write", bool(succeeds), bool(is_applied)):
            scene.end_write(succeeds=succeeds, is_applied=is_applied)
        case ("advance", float(by_ms)):
            scene.advance(by_ms)
        case ("close_session", str(member)):
            scene.close_session(member)
        case ("delete_records", int(offset)):
            scene.delete_records(offset)
        case ("change_leader", bool(is_applied)):
            scene.change_leader(is_applied=is_applied)
        case _:
            raise AssertionError(event)
