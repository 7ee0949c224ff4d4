"""Logs on simulated disks are read as they are, and compared with the committed log."""

import pytest
from disks_scene import TOPIC, Disks, batch

from moldau_dev.simulation.cluster.committed_log import CommittedLog
from moldau_dev.simulation.cluster.topology import FOLDER
from moldau_dev.simulation.workload import Violation


def test_log_is_read_incrementally() -> None:
    disks = Disks()
    log = disks.log("node-1")
    assert (log.refresh(), log.end_offset) == (False, 0)
    disks.write("node-1", batch(0), batch(1, records=3))
    assert (log.refresh(), log.end_offset, len(log.batches)) == (False, 4, 2)
    disks.write("node-1", batch(4), segment=4)
    assert (log.refresh(), log.end_offset, len(log.batches)) == (False, 5, 3)


def test_log_is_durable_up_to_the_synced_part_of_synced_names() -> None:
    disks = Disks()
    log = disks.log("node-1")
    disks.write("node-1", batch(0), batch(1))
    log.refresh()
    assert log.durable_end_offset() == 0
    disks.sync("node-1")
    assert log.durable_end_offset() == 2
    disks.write("node-1", batch(2), batch(3))
    log.refresh()
    assert (log.durable_end_offset(), log.end_offset) == (2, 4)
    disks.sync("node-1")
    disks.write("node-1", batch(4), segment=4)
    log.refresh()
    assert (log.durable_end_offset(), log.end_offset) == (4, 5)


def test_records_below_a_snapshot_need_not_be_durable() -> None:
    disks = Disks()
    log = disks.log("node-1")
    disks.write("node-1", batch(0), batch(1))
    disks.write("node-1", batch(2), segment=2)
    disks.sync("node-1")
    disks.write("node-1", batch(2), segment=0)  # of the first segment, nothing is sure now
    log.refresh()
    assert [log.durable_end_offset(since) for since in (0, 1, 2)] == [2, 2, 3]


def test_truncated_or_replaced_log_is_detected() -> None:
    disks = Disks()
    log = disks.log("node-1")
    disks.write("node-1", batch(0), batch(1))
    log.refresh()
    disks.truncate("node-1", len(batch(0)))
    assert (log.refresh(), log.end_offset) == (True, 1)
    disks.write("node-1", batch(1, value=b"y", epoch=1))
    assert log.refresh() is False
    disks.truncate("node-1", len(batch(0)))
    disks.write("node-1", batch(1, value=b"z", epoch=2))
    assert (log.refresh(), log.batches[-1].leader_epoch) == (True, 2)


def test_torn_batch_is_ignored_until_complete() -> None:
    disks = Disks()
    log = disks.log("node-1")
    whole = batch(1)
    disks.write("node-1", batch(0), whole[:-3])
    assert (log.refresh(), log.end_offset) == (False, 1)
    disks.write("node-1", whole[-3:])
    assert (log.refresh(), log.end_offset) == (False, 2)


def test_batches_of_removed_segments_are_dropped() -> None:
    disks = Disks()
    log = disks.log("node-1")
    disks.write("node-1", batch(0))
    disks.write("node-1", batch(1), segment=1)
    log.refresh()
    disks.hosts["node-1"].disk.mount().unlink(f"{FOLDER}/{TOPIC}-0/{0:020}.log")
    disks.write("node-1", batch(2), segment=1)
    log.refresh()
    assert (log.start_offset, log.end_offset) == (1, 3)


def test_missing_or_different_committed_batch_is_found() -> None:
    disks = Disks()
    committed = CommittedLog("t-0")
    for host in disks.hosts:
        disks.write(host, batch(0))
    disks.write("node-1", batch(1))
    disks.write("node-2", batch(1, value=b"y"))
    logs = {host: disks.log(host) for host in disks.hosts}
    for log in logs.values():
        log.refresh()
    committed.advance("node-1", logs["node-1"], 1)
    for host, log in logs.items():
        committed.require(host, log)
    committed.advance("node-1", logs["node-1"], 2)
    with pytest.raises(Violation, match="was committed"):
        committed.require("node-2", logs["node-2"])
    with pytest.raises(Violation, match="ends at 1, but 2 is committed"):
        committed.require("node-3", logs["node-3"])


def test_replica_that_starts_with_a_snapshot_is_compared_from_there() -> None:
    disks = Disks()
    committed = CommittedLog("t-0")
    disks.write("node-1", batch(0), batch(1), batch(2))
    disks.write("node-2", batch(2), segment=2)
    disks.write("node-3", batch(2, value=b"y"), segment=2)
    logs = {host: disks.log(host) for host in disks.hosts}
    for log in logs.values():
        log.refresh()
    committed.advance("node-1", logs["node-1"], 3)
    committed.require("node-2", logs["node-2"])
    with pytest.raises(Violation):
        committed.require("node-3", logs["node-3"])


def test_verified_replica_may_start_with_a_later_snapshot() -> None:
    disks = Disks()
    committed = CommittedLog("t-0")
    for host in disks.hosts:
        disks.write(host, batch(0), batch(1), batch(2))
    log = disks.log("node-1")
    log.refresh()
    committed.advance("node-1", log, 1)
    committed.advance("node-2", disks.log("node-2"), 0)
    ahead = disks.log("node-2")
    ahead.refresh()
    committed.advance("node-2", ahead, 3)
    disks.write("node-1", segment=3)
    disks.hosts["node-1"].disk.mount().unlink(f"{FOLDER}/{TOPIC}-0/{0:020}.log")
    log.refresh()
    committed.verify_follower("node-1", log, 3)
    disks.write("node-2", batch(3))
    disks.write("node-1", batch(3, value=b"y"), segment=3)
    ahead.refresh()
    log.refresh()
    committed.advance("node-2", ahead, 4)
    with pytest.raises(Violation, match="was committed"):
        committed.verify_follower("node-1", log, 4)
