"""The follower machine: fetch positions, high watermark, truncation."""

import pytest
from replication_parts import Entry, ModelLog

from moldau.machines.replication import EpochEnd, FollowerMachine, RestartAt, TruncateTo, find_divergence
from moldau.model.errors import OffsetOutOfRange


def log_of(*epochs: int, start_offset: int = 0) -> ModelLog:
    """Return a log with one entry for each given epoch."""
    log = ModelLog(start_offset)
    log.append([Entry(epoch, number) for number, epoch in enumerate(epochs)])
    return log


def follower(log: ModelLog, high_watermark: int = 0) -> FollowerMachine:
    return FollowerMachine(log, leader=2, leader_epoch=9, high_watermark=high_watermark)


def agree(leaders: ModelLog, own: ModelLog) -> list[int]:
    """Fetch until the follower's log is a prefix of its leader's; return its truncations."""
    machine = follower(own)
    cuts: list[int] = []
    for _ in range(10):
        diverging = find_divergence(leaders, machine.last_fetched_epoch, machine.fetch_offset)
        if diverging is None:
            return cuts
        cut = machine.diverged(diverging)
        own.truncate_to(cut.end_offset)
        cuts.append(cut.end_offset)
    raise AssertionError("it asks for ever")


# ── Divergence ──


@pytest.mark.proves("H5")
def test_prefix_of_the_leaders_log_is_not_truncated() -> None:
    assert agree(log_of(1, 1, 2, 2), log_of(1, 1, 2)) == []
    assert agree(log_of(1, 1, 2, 2), log_of()) == []


@pytest.mark.proves("H5")
def test_follower_truncates_exactly_what_its_leader_lacks() -> None:
    own = log_of(1, 1, 1, 1, 1)
    assert agree(log_of(1, 1, 1, 2), own) == [3]
    assert own.end_offset == 3


@pytest.mark.proves("H5")
def test_follower_truncates_to_the_end_of_the_last_common_epoch() -> None:
    """Two leaders in quick succession, each with its own records at the same offsets."""
    own = log_of(1, 1, 3, 3, 5, 5)
    assert agree(log_of(1, 1, 2, 2, 4, 4, 6), own) == [4, 2]
    assert own.end_offset == 2


@pytest.mark.proves("H5")
def test_common_records_of_a_longer_epoch_are_kept() -> None:
    own = log_of(1, 2, 2, 2, 3)
    assert agree(log_of(1, 2, 2, 4, 4), own) == [3]


def test_epoch_without_records_is_dropped_without_a_truncation() -> None:
    own = log_of(1, 1)
    own.epochs.assign(4, 2)  # it led once and wrote nothing
    assert agree(log_of(1, 1, 5), own) == [2]
    assert (own.end_offset, own.epochs.latest) == (2, 1)


def test_log_starting_after_the_divergence_restarts_at_it() -> None:
    own = log_of(4, 4, start_offset=10)
    assert agree(log_of(1, 1, 5, 5), own) == [2]
    assert (own.start_offset, own.end_offset) == (2, 2)


def test_leader_without_epochs_is_out_of_range() -> None:
    with pytest.raises(OffsetOutOfRange):
        find_divergence(log_of(), 3, 5)


# ── Responses ──


@pytest.mark.proves("H5")
def test_only_the_response_to_the_current_position_is_expected() -> None:
    machine = follower(log_of(1, 1, 2))
    assert machine.expects(9, 3, 2)
    assert not machine.expects(8, 3, 2)
    assert not machine.expects(9, 2, 2)
    assert not machine.expects(9, 3, 1)


@pytest.mark.proves("H1")
def test_high_watermark_follows_the_leader_up_to_the_log_end() -> None:
    log = log_of(1, 1, 1)
    machine = follower(log)
    machine.fetched(10, 0)
    assert machine.high_watermark == 3
    machine.fetched(2, 0)  # a new leader that does not know all positions yet
    assert machine.high_watermark == 3


def test_log_start_follows_the_leader_up_to_the_high_watermark() -> None:
    machine = follower(log_of(1, 1, 1, 1), high_watermark=2)
    machine.fetched(2, 1)
    assert machine.log_start_offset == 1
    machine.fetched(2, 4)
    assert machine.log_start_offset == 2


def test_checkpoint_beyond_the_log_is_not_used() -> None:
    assert follower(log_of(1, 1), high_watermark=7).high_watermark == 2


@pytest.mark.proves("H5")
def test_truncation_lowers_the_high_watermark() -> None:
    log = log_of(1, 1, 1, 1)
    machine = follower(log, high_watermark=4)
    assert machine.diverged(EpochEnd(1, 3)) == TruncateTo(3)
    assert machine.high_watermark == 3


# ── Out of range ──


@pytest.mark.proves("H5")
def test_follower_below_leader_log_start_restarts_there() -> None:
    machine = follower(log_of(1, 1))
    assert machine.offset_out_of_range(10, 20) == RestartAt(10)
    assert (machine.high_watermark, machine.log_start_offset) == (10, 10)


def test_follower_beyond_an_unclean_leaders_end_truncates_to_it() -> None:
    machine = follower(log_of(1, 1, 1, 1), high_watermark=4)
    assert machine.offset_out_of_range(0, 3) == TruncateTo(3)
    assert machine.high_watermark == 3


def test_follower_entirely_beyond_its_leader_restarts_from_its_log_start() -> None:
    machine = follower(log_of(1, 1, start_offset=10), high_watermark=12)
    assert machine.offset_out_of_range(2, 5) == RestartAt(2)
    assert machine.high_watermark == 2


def test_follower_in_range_fetches_again() -> None:
    machine = follower(log_of(1, 1, 1))
    assert machine.offset_out_of_range(0, 3) is None
    assert machine.offset_out_of_range(3, 8) is None
