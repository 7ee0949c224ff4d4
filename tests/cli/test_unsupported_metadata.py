"""Unsupported metadata is rejected at startup with the reason."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from moldau.broker.drivers.metadata_batches import build_records
from moldau.cli.main import app
from moldau.records.builder import build_batch
from moldau.records.record import iterate_batches
from moldau.testing.broker import Broker
from moldau.wire import messages

LOG = "__cluster_metadata-0/00000000000000000000.log"


def batch(record: Any, offset: int, epoch: int) -> bytes:
    if isinstance(record, bytes):
        return bytes(build_batch([(1, None, record, ())], base_offset=offset, leader_epoch=epoch))
    return bytes(build_records([record], timestamp_ms=1, base_offset=offset, leader_epoch=epoch))


FOREIGN = [
    (messages.FeatureLevelRecord(name="metadata.version", feature_level=99), "metadata.version is 99"),
    (b"\x01\x40\x00", "type 64 version 0 is unknown"),
]


@pytest.mark.parametrize(("record", "words"), FOREIGN, ids=["level", "unknown"])
def test_metadata_of_newer_software_is_rejected_in_one_line(tmp_path: Path, record: Any, words: str) -> None:
    with Broker(data=tmp_path / "data"):
        pass
    log = tmp_path / "data" / LOG
    written = log.read_bytes()
    *_, (last, _) = iterate_batches(written)
    log.write_bytes(written + batch(record, last.next_offset, last.partition_leader_epoch))
    result = CliRunner().invoke(app, ["start", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0"])
    assert result.exit_code == 1
    assert words in result.stderr
    assert "Traceback" not in result.output
