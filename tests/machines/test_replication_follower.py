"""What a follower asks for, what it believes, and what it cuts from its log."""

import pytest
from replication_parts import Entry, ModelLog

from moldau.machines.replication import EpochEnd, FollowerMachine, RestartAt, TruncateTo, find_divergence
from moldau.model.errors import OffsetOutOfRange


def log_of(*epochs: int, start_offset: int = 0) -> ModelLog:
    """A log with one entry for each epoch named."""
    log = ModelLog(start_offset)
    log.append([Entry(epoch, number) for number, epoch in enumerate(epochs)])
    return log


def follower(log: ModelLog, high_watermark: int = 0) -> FollowerMachine:
    return FollowerMachine(log, leader=2, leader_epoch=9, high_watermark=high_watermark)


def agree(leaders: ModelLog, own: ModelLog) -> list[int]:
    """Let a follower fetch until its log is the beginning of its leader's; where it was cut on the way."""
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


# ── Where logs part ──


@pytest.mark.proves("H5")
def test_a_log_that_is_the_beginning_of_its_leaders_is_not_cut() -> None:
    assert agree(log_of(1, 1, 2, 2), log_of(1, 1, 2)) == []
    assert agree(log_of(1, 1, 2, 2), log_of()) == []


@pytest.mark.proves("H5")
def test_a_follower_cuts_what_its_leader_never_had_and_no_more() -> None:
    own = log_of(1, 1, 1, 1, 1)
    assert agree(log_of(1, 1, 1, 2), own) == [3]
    assert own.end_offset == 3


@pytest.mark.proves("H5")
def test_a_follower_is_cut_at_the_end_of_the_last_epoch_both_have() -> None:
    """Two leaders in quick succession, each with records of its own at the same offsets."""
    own = log_of(1, 1, 3, 3, 5, 5)
    assert agree(log_of(1, 1, 2, 2, 4, 4, 6), own) == [4, 2]
    assert own.end_offset == 2


@pytest.mark.proves("H5")
def test_a_follower_with_records_of_an_epoch_the_leader_has_less_of_keeps_the_shared_ones() -> None:
    own = log_of(1, 2, 2, 2, 3)
    assert agree(log_of(1, 2, 2, 4, 4), own) == [3]


def test_an_epoch_in_which_nothing_was_written_is_forgotten_without_a_cut() -> None:
    own = log_of(1, 1)
    own.epochs.assign(4, 2)  # it led once and wrote nothing
    assert agree(log_of(1, 1, 5), own) == [2]
    assert (own.end_offset, own.epochs.latest) == (2, 1)


def test_a_follower_whose_log_begins_after_its_leaders_part_goes_back_to_there() -> None:
    own = log_of(4, 4, start_offset=10)
    assert agree(log_of(1, 1, 5, 5), own) == [2]
    assert (own.start_offset, own.end_offset) == (2, 2)


def test_a_leader_that_knows_no_epoch_is_out_of_range() -> None:
    with pytest.raises(OffsetOutOfRange):
        find_divergence(log_of(), 3, 5)


# ── Answers ──


@pytest.mark.proves("H5")
def test_only_the_response_to_the_current_position_is_expected() -> None:
    machine = follower(log_of(1, 1, 2))
    assert machine.expects(9, 3, 2)
    assert not machine.expects(8, 3, 2)
    assert not machine.expects(9, 2, 2)
    assert not machine.expects(9, 3, 1)


@pytest.mark.proves("H1")
def test_the_high_watermark_is_the_leaders_as_far_as_the_log_goes() -> None:
    log = log_of(1, 1, 1)
    machine = follower(log)
    machine.fetched(10, 0)
    assert machine.high_watermark == 3
    machine.fetched(2, 0)  # a new leader that has not heard from everybody yet
    assert machine.high_watermark == 3


def test_the_log_begins_where_the_leaders_does_but_keeps_what_is_not_committed() -> None:
    machine = follower(log_of(1, 1, 1, 1), high_watermark=2)
    machine.fetched(2, 1)
    assert machine.log_start_offset == 1
    machine.fetched(2, 4)
    assert machine.log_start_offset == 2


def test_checkpoint_beyond_the_log_is_not_used() -> None:
    assert follower(log_of(1, 1), high_watermark=7).high_watermark == 2


@pytest.mark.proves("H5")
def test_what_is_cut_is_not_committed_any_more() -> None:
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


def test_a_follower_beyond_a_leader_that_was_elected_uncleanly_goes_back_to_its_end() -> None:
    machine = follower(log_of(1, 1, 1, 1), high_watermark=4)
    assert machine.offset_out_of_range(0, 3) == TruncateTo(3)
    assert machine.high_watermark == 3


def test_a_follower_whose_whole_log_is_beyond_its_leaders_takes_all_of_the_leaders() -> None:
    machine = follower(log_of(1, 1, start_offset=10), high_watermark=12)
    assert machine.offset_out_of_range(2, 5) == RestartAt(2)
    assert machine.high_watermark == 2


def test_follower_in_range_fetches_again() -> None:
    machine = follower(log_of(1, 1, 1))
    assert machine.offset_out_of_range(0, 3) is None
    assert machine.offset_out_of_range(3, 8) is None
