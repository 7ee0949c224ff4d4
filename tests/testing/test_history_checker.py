"""The checker finds each anomaly, and accepts correct histories."""

import pytest
from history_scene import A, B, Notebook, RightLog

from moldau_dev.history.attempts import Unreadable, pair
from moldau_dev.history.operations import Kind


def test_two_values_at_one_offset_are_found() -> None:
    book = Notebook()
    book.send(1, 0, process="p1")
    book.send(2, 1, process="p1")
    book.poll((0, 1), process="c1")
    book.poll((0, 2), process="c2")
    assert "inconsistent offsets" in book.anomalies()


def test_value_at_two_offsets_is_a_duplicate() -> None:
    book = Notebook()
    book.send(1, 0)
    book.poll((0, 1), (1, 1))
    assert book.anomalies() == ["duplicate"]


def test_acknowledged_write_below_the_read_position_is_lost_if_unread() -> None:
    book = Notebook()
    book.send(1, 0)
    book.send(2, 1)
    book.poll((1, 2))
    assert book.anomalies() == ["lost write"]


def test_write_skipped_by_a_group_is_lost_although_others_read_it() -> None:
    book = Notebook()
    for value in range(3):
        book.send(value, value)
    book.poll((0, 0), (1, 1), (2, 2), process="reader")
    book.note("subscribe", {"group": "g", "topics": ["t"]}, process="g1")
    book.poll((0, 0), process="g1")
    book.note("subscribe", {"group": "g", "topics": ["t"]}, process="g2")
    book.poll((2, 2), process="g2")
    assert [str(anomaly) for anomaly in book.report().anomalies] == [
        "lost write: t-0: 1 at 1 was not read by group g, although later records were"
    ]


def test_group_need_not_read_below_its_first_record() -> None:
    book = Notebook()
    book.send(1, 0)
    book.send(2, 1)
    book.poll((0, 1), (1, 2), process="reader")
    book.note("subscribe", {"group": "g", "topics": ["t"]}, process="g1")
    book.poll((1, 2), process="g1")
    assert book.report().is_valid


def test_write_with_unknown_outcome_need_not_be_read() -> None:
    book = Notebook()
    book.send(1, None, kind=Kind.INFO)
    book.send(2, 1)
    book.poll((1, 2))
    assert book.report(is_complete=True).is_valid


@pytest.mark.parametrize("is_seen", [True, False])
def test_reads_of_an_unknown_transaction_count_if_its_results_are_read(is_seen: bool) -> None:
    book = Notebook()
    book.send(1, 0)
    book.send(2, 1)
    book.add("t", Kind.INVOKE, "txn", [["poll", {A: [[0, 1]]}], ["send", B, 10]])  # then it was killed
    book.poll((1, 2), key=A)
    if is_seen:
        book.poll((0, 10), key=B, process="d")
    assert book.anomalies() == ([] if is_seen else ["lost write"])


def test_unread_write_is_unseen_once_all_should_have_been_read() -> None:
    book = Notebook()
    book.send(1, 0)
    book.send(2, 1)
    book.poll((0, 1))
    assert book.anomalies() == []
    assert book.anomalies(is_complete=True) == ["unseen"]


def test_write_without_offset_is_unseen_when_it_is_not_read() -> None:
    book = Notebook()
    book.send(1, -1)
    book.send(2, 5)
    book.poll((5, 2))
    assert book.anomalies(is_complete=True) == ["unseen"]


def test_key_that_a_group_never_reads_is_unseen() -> None:
    book = Notebook()
    book.send(1, 0, key=B)
    book.poll((0, 1), key=B, process="reader")
    book.note("subscribe", {"group": "g", "topics": ["t"]}, process="g1")
    book.poll(process="g1")
    assert book.anomalies(is_complete=True) == ["unseen"]


def test_read_of_a_failed_write_is_an_aborted_read() -> None:
    book = Notebook()
    book.send(1, None, kind=Kind.FAIL)
    book.poll((0, 1))
    assert book.anomalies() == ["aborted read"]


def test_read_of_a_failed_transaction_is_an_aborted_read() -> None:
    book = Notebook()
    book.transaction(["send", A, [0, 1]], kind=Kind.FAIL)
    book.poll((0, 1))
    assert book.anomalies() == ["aborted read"]


def test_value_that_was_never_sent_is_found() -> None:
    book = Notebook()
    book.poll((0, 99))
    assert book.anomalies() == ["read from nowhere"]


def test_poll_without_a_known_record_is_a_skip() -> None:
    book = Notebook()
    for value in range(3):
        book.send(value, value)
    book.poll((0, 0), (1, 1), (2, 2), process="c1")
    book.poll((0, 0), process="c2")
    book.poll((2, 2), process="c2")
    assert book.anomalies() == ["poll skip"]


def test_gap_without_records_is_no_skip() -> None:
    book = Notebook()
    book.send(1, 0)
    book.send(2, 7)
    book.poll((0, 1), (7, 2))
    assert book.report(is_complete=True).is_valid


def test_poll_that_goes_back_is_found() -> None:
    book = Notebook()
    book.send(1, 0)
    book.send(2, 1)
    book.poll((0, 1), (1, 2))
    book.poll((0, 1))
    assert book.anomalies() == ["non-monotonic poll"]


@pytest.mark.parametrize("why", ["crash", "assign"])
def test_restarted_client_may_go_back_and_skip(why: str) -> None:
    book = Notebook()
    for value in range(3):
        book.send(value, value)
    book.poll((0, 0), (1, 1), (2, 2))
    book.note(why, [] if why == "assign" else None)
    book.poll((0, 0))
    book.note(why, [] if why == "assign" else None)
    book.poll((2, 2))
    assert book.report().is_valid


def test_kept_assignment_keeps_its_position() -> None:
    book = Notebook()
    book.send(1, 0)
    book.poll((0, 1))
    book.note("assign", [A, B])
    book.poll((0, 1))
    assert book.anomalies() == ["non-monotonic poll"]


def test_assignment_during_a_poll_applies_to_that_poll() -> None:
    book = Notebook()
    book.send(1, 0)
    book.poll((0, 1))
    book.add("c", Kind.INVOKE, "poll")
    book.note("assign", [])
    book.note("assign", [A])
    book.add("c", Kind.OK, "poll", {A: [[0, 1]]})
    assert book.report().is_valid


def test_sends_of_one_client_out_of_order_are_found() -> None:
    book = Notebook()
    book.begin_send(1)
    book.begin_send(2)
    book.end_send(2, 0)
    book.end_send(1, 1)
    assert book.anomalies() == ["non-monotonic send"]


def test_write_below_an_earlier_acknowledged_one_is_found() -> None:
    book = Notebook()
    book.send(1, 5, process="p1")
    book.send(2, 4, process="p2")
    assert book.anomalies() == ["acknowledged below an earlier one"]


def test_overlapping_writes_may_have_any_order() -> None:
    book = Notebook()
    book.begin_send(1, process="p1")
    book.send(2, 5, process="p2")
    book.end_send(1, 4, process="p1")
    assert book.report().is_valid


def test_transaction_with_a_missing_part_is_torn() -> None:
    book = Notebook()
    book.transaction(["send", A, [0, 1]], ["send", B, [0, 2]], kind=Kind.INFO)
    book.poll((0, 1))
    assert book.anomalies() == [], "the rest may come yet"
    book.send(3, 9, key=B)
    book.poll((9, 3), key=B)
    assert book.anomalies() == ["torn transaction"]


def test_transaction_with_an_unread_part_is_torn_in_a_complete_history() -> None:
    book = Notebook()
    book.transaction(["send", A, [0, 1]], ["send", B, [0, 2]], kind=Kind.INFO)
    book.poll((0, 1))
    assert book.anomalies(is_complete=True) == ["torn transaction"]


def test_transactions_that_read_each_other_are_a_cycle() -> None:
    book = Notebook()
    book.add("t1", Kind.INVOKE, "txn", [["send", A, 1], ["poll"]])
    book.transaction(["send", B, [0, 2]], ["poll", {A: [[0, 1]]}], process="t2")
    book.add("t1", Kind.OK, "txn", [["send", A, [0, 1]], ["poll", {B: [[0, 2]]}]])
    assert "G1c cycle" in book.anomalies()


def test_long_cycle_is_found_among_many_chains() -> None:
    book = Notebook()
    count = 2000
    for number in range(count):
        book.add(f"t{number}", Kind.INVOKE, "txn", [["send", A, number], ["poll"]])
    for number in range(count):
        read = (number + 1) % count
        book.add(f"t{number}", Kind.OK, "txn", [["send", A, [number, number]], ["poll", {A: [[read, read]]}]])
    assert book.report().counts()["G1c cycle"] == 1


def test_writes_in_opposite_order_are_a_cycle_only_with_counts_writes() -> None:
    book = Notebook()
    book.transaction(["send", A, [0, 1]], ["send", B, [1, 2]], process="t1")
    book.transaction(["send", A, [1, 3]], ["send", B, [0, 4]], process="t2")
    assert "G1c cycle" not in book.anomalies()
    assert "G1c cycle" in book.anomalies(counts_writes=True)


def test_input_of_two_transactions_is_not_exactly_once() -> None:
    book = Notebook()
    book.send(1, 0, key=A)
    book.transaction(["poll", {A: [[0, 1]]}], ["send", B, [0, 10]], process="t1")
    book.transaction(["poll", {A: [[0, 1]]}], ["send", B, [2, 11]], process="t2")
    assert book.anomalies() == ["not exactly once"]


def test_input_of_an_aborted_transaction_does_not_count() -> None:
    book = Notebook()
    book.send(1, 0, key=A)
    book.transaction(["poll", {A: [[0, 1]]}], ["send", B, [0, 10]], process="t1", kind=Kind.FAIL)
    book.transaction(["poll", {A: [[0, 1]]}], ["send", B, [2, 11]], process="t2")
    book.poll((2, 11), key=B)
    assert book.report(is_complete=True).is_valid


def test_unprocessed_input_is_missing_in_a_complete_history() -> None:
    book = Notebook()
    book.send(1, 0, key=A)
    book.send(2, 1, key=A)
    book.transaction(["poll", {A: [[0, 1]]}], ["send", B, [0, 10]])
    book.poll((0, 1), (1, 2))
    book.poll((0, 10), key=B)
    assert book.anomalies(is_complete=True) == ["not exactly once"]


@pytest.mark.parametrize("seed", range(50))
def test_correct_history_has_no_anomaly(seed: int) -> None:
    report = RightLog(seed).live(200).report(is_complete=True)
    assert report.is_valid, report.text()
    assert report.proves_something


@pytest.mark.parametrize("seed", range(20))
def test_one_lost_record_in_a_correct_history_is_found(seed: int) -> None:
    """Every reader is kept from one record that was acknowledged and is not the last of its key."""
    book = RightLog(seed).live(200)
    acknowledged = [
        operation.value["value"]
        for operation in book.operations
        if operation.kind is Kind.OK and operation.f == "send" and operation.value["offset"] >= 0
    ]
    gone = acknowledged[len(acknowledged) // 2]
    for operation in book.operations:
        if operation.f == "poll" and operation.kind is Kind.OK:
            for reads in operation.value.values():
                reads[:] = [read for read in reads if read[1] != gone]
    names = book.report(is_complete=True).counts()
    assert "lost write" in names or "unseen" in names


def test_history_without_writes_or_reads_is_inconclusive() -> None:
    book = Notebook()
    book.send(1, 0)
    assert not book.report().proves_something
    assert "unknown" in book.report().text()


def test_history_with_a_value_sent_twice_is_unreadable() -> None:
    book = Notebook()
    book.send(1, 0)
    book.send(1, 1)
    with pytest.raises(Unreadable, match="twice"):
        book.report()


def test_completion_without_invocation_is_unreadable() -> None:
    book = Notebook()
    book.end_send(1, 0)
    with pytest.raises(Unreadable, match="did not invoke"):
        pair(book.operations)
