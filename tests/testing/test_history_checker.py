"""The checker finds each anomaly in a history made for it, and raises no alarm over right ones."""

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


def test_a_value_at_two_offsets_is_a_duplicate() -> None:
    book = Notebook()
    book.send(1, 0)
    book.poll((0, 1), (1, 1))
    assert book.anomalies() == ["duplicate"]


def test_an_acknowledged_write_that_readers_came_past_is_lost() -> None:
    book = Notebook()
    book.send(1, 0)
    book.send(2, 1)
    book.poll((1, 2))
    assert book.anomalies() == ["lost write"]


def test_a_write_that_a_group_came_past_is_lost_to_the_group_though_others_read_it() -> None:
    book = Notebook()
    for value in range(3):
        book.send(value, value)
    book.poll((0, 0), (1, 1), (2, 2), process="reader")
    book.note("subscribe", {"group": "g", "topics": ["t"]}, process="g1")
    book.poll((0, 0), process="g1")
    book.note("subscribe", {"group": "g", "topics": ["t"]}, process="g2")
    book.poll((2, 2), process="g2")
    assert [str(anomaly) for anomaly in book.report().anomalies] == [
        "lost write: t-0: 1 at 1 was not read by group g, who came past it"
    ]


def test_a_group_owes_nothing_below_where_it_began() -> None:
    book = Notebook()
    book.send(1, 0)
    book.send(2, 1)
    book.poll((0, 1), (1, 2), process="reader")
    book.note("subscribe", {"group": "g", "topics": ["t"]}, process="g1")
    book.poll((1, 2), process="g1")
    assert book.report().is_valid


def test_a_write_of_unknown_fate_need_not_be_read() -> None:
    book = Notebook()
    book.send(1, None, kind=Kind.INFO)
    book.send(2, 1)
    book.poll((1, 2))
    assert book.report(is_complete=True).is_valid


@pytest.mark.parametrize("is_seen", [True, False])
def test_what_a_transaction_of_unknown_fate_read_is_read_if_its_results_are_seen(is_seen: bool) -> None:
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


def test_a_key_that_a_group_never_reads_is_unseen_by_it() -> None:
    book = Notebook()
    book.send(1, 0, key=B)
    book.poll((0, 1), key=B, process="reader")
    book.note("subscribe", {"group": "g", "topics": ["t"]}, process="g1")
    book.poll(process="g1")
    assert book.anomalies(is_complete=True) == ["unseen"]


def test_a_read_of_a_write_that_failed_is_an_aborted_read() -> None:
    book = Notebook()
    book.send(1, None, kind=Kind.FAIL)
    book.poll((0, 1))
    assert book.anomalies() == ["aborted read"]


def test_a_read_of_a_transaction_that_failed_is_an_aborted_read() -> None:
    book = Notebook()
    book.transaction(["send", A, [0, 1]], kind=Kind.FAIL)
    book.poll((0, 1))
    assert book.anomalies() == ["aborted read"]


def test_value_that_was_never_sent_is_found() -> None:
    book = Notebook()
    book.poll((0, 99))
    assert book.anomalies() == ["read from nowhere"]


def test_a_poll_that_leaves_out_a_record_is_a_skip() -> None:
    book = Notebook()
    for value in range(3):
        book.send(value, value)
    book.poll((0, 0), (1, 1), (2, 2), process="c1")
    book.poll((0, 0), process="c2")
    book.poll((2, 2), process="c2")
    assert book.anomalies() == ["poll skip"]


def test_a_gap_without_records_is_no_skip() -> None:
    book = Notebook()
    book.send(1, 0)
    book.send(2, 7)
    book.poll((0, 1), (7, 2))
    assert book.report(is_complete=True).is_valid


def test_a_poll_that_goes_back_is_found() -> None:
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


def test_an_assignment_that_keeps_a_key_keeps_its_position() -> None:
    book = Notebook()
    book.send(1, 0)
    book.poll((0, 1))
    book.note("assign", [A, B])
    book.poll((0, 1))
    assert book.anomalies() == ["non-monotonic poll"]


def test_an_assignment_that_comes_while_polling_counts_for_what_is_polled() -> None:
    book = Notebook()
    book.send(1, 0)
    book.poll((0, 1))
    book.add("c", Kind.INVOKE, "poll")
    book.note("assign", [])
    book.note("assign", [A])
    book.add("c", Kind.OK, "poll", {A: [[0, 1]]})
    assert book.report().is_valid


def test_sends_of_one_client_that_land_in_another_order_are_found() -> None:
    book = Notebook()
    book.begin_send(1)
    book.begin_send(2)
    book.end_send(2, 0)
    book.end_send(1, 1)
    assert book.anomalies() == ["non-monotonic send"]


def test_a_write_below_one_that_was_acknowledged_before_it_began_is_found() -> None:
    book = Notebook()
    book.send(1, 5, process="p1")
    book.send(2, 4, process="p2")
    assert book.anomalies() == ["acknowledged below an earlier one"]


def test_writes_that_overlap_may_land_either_way() -> None:
    book = Notebook()
    book.begin_send(1, process="p1")
    book.send(2, 5, process="p2")
    book.end_send(1, 4, process="p1")
    assert book.report().is_valid


def test_a_transaction_of_which_a_part_is_missing_is_torn() -> None:
    book = Notebook()
    book.transaction(["send", A, [0, 1]], ["send", B, [0, 2]], kind=Kind.INFO)
    book.poll((0, 1))
    assert book.anomalies() == [], "the rest may come yet"
    book.send(3, 9, key=B)
    book.poll((9, 3), key=B)
    assert book.anomalies() == ["torn transaction"]


def test_a_transaction_is_torn_if_a_part_was_never_read_when_all_should_have_been() -> None:
    book = Notebook()
    book.transaction(["send", A, [0, 1]], ["send", B, [0, 2]], kind=Kind.INFO)
    book.poll((0, 1))
    assert book.anomalies(is_complete=True) == ["torn transaction"]


def test_transactions_that_read_each_other_are_a_circle() -> None:
    book = Notebook()
    book.add("t1", Kind.INVOKE, "txn", [["send", A, 1], ["poll"]])
    book.transaction(["send", B, [0, 2]], ["poll", {A: [[0, 1]]}], process="t2")
    book.add("t1", Kind.OK, "txn", [["send", A, [0, 1]], ["poll", {B: [[0, 2]]}]])
    assert "G1c cycle" in book.anomalies()


def test_a_long_circle_is_found_among_many_straight_lines() -> None:
    book = Notebook()
    count = 2000
    for number in range(count):
        book.add(f"t{number}", Kind.INVOKE, "txn", [["send", A, number], ["poll"]])
    for number in range(count):
        read = (number + 1) % count
        book.add(f"t{number}", Kind.OK, "txn", [["send", A, [number, number]], ["poll", {A: [[read, read]]}]])
    assert book.report().counts()["G1c cycle"] == 1


def test_writes_in_opposite_order_are_a_circle_only_if_asked() -> None:
    book = Notebook()
    book.transaction(["send", A, [0, 1]], ["send", B, [1, 2]], process="t1")
    book.transaction(["send", A, [1, 3]], ["send", B, [0, 4]], process="t2")
    assert "G1c cycle" not in book.anomalies()
    assert "G1c cycle" in book.anomalies(counts_writes=True)


def test_an_input_that_two_transactions_used_was_not_used_once() -> None:
    book = Notebook()
    book.send(1, 0, key=A)
    book.transaction(["poll", {A: [[0, 1]]}], ["send", B, [0, 10]], process="t1")
    book.transaction(["poll", {A: [[0, 1]]}], ["send", B, [2, 11]], process="t2")
    assert book.anomalies() == ["not exactly once"]


def test_an_input_of_an_aborted_transaction_counts_only_where_it_was_used() -> None:
    book = Notebook()
    book.send(1, 0, key=A)
    book.transaction(["poll", {A: [[0, 1]]}], ["send", B, [0, 10]], process="t1", kind=Kind.FAIL)
    book.transaction(["poll", {A: [[0, 1]]}], ["send", B, [2, 11]], process="t2")
    book.poll((2, 11), key=B)
    assert book.report(is_complete=True).is_valid


def test_an_input_that_no_transaction_used_is_missing_in_the_end() -> None:
    book = Notebook()
    book.send(1, 0, key=A)
    book.send(2, 1, key=A)
    book.transaction(["poll", {A: [[0, 1]]}], ["send", B, [0, 10]])
    book.poll((0, 1), (1, 2))
    book.poll((0, 10), key=B)
    assert book.anomalies(is_complete=True) == ["not exactly once"]


@pytest.mark.parametrize("seed", range(50))
def test_no_alarm_over_a_right_history(seed: int) -> None:
    report = RightLog(seed).live(200).report(is_complete=True)
    assert report.is_valid, report.text()
    assert report.proves_something


@pytest.mark.parametrize("seed", range(20))
def test_a_right_history_made_wrong_by_one_lost_record_is_found(seed: int) -> None:
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


def test_a_history_without_writes_or_reads_proves_nothing() -> None:
    book = Notebook()
    book.send(1, 0)
    assert not book.report().proves_something
    assert "unknown" in book.report().text()


def test_a_value_that_is_sent_twice_makes_a_history_unreadable() -> None:
    book = Notebook()
    book.send(1, 0)
    book.send(1, 1)
    with pytest.raises(Unreadable, match="twice"):
        book.report()


def test_a_completion_without_its_invocation_is_unreadable() -> None:
    book = Notebook()
    book.end_send(1, 0)
    with pytest.raises(Unreadable, match="never began"):
        pair(book.operations)
