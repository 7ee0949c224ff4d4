"""A data directory with an invalid `meta.properties` is rejected in one line that names the file."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from moldau.cli.local.layout import LocalCluster
from moldau.cli.main import app

pytestmark = pytest.mark.proves("A4", part="storage and log dump")


@pytest.mark.parametrize(
    "text",
    [b"\xff\xfe\x00", b"version=1\ncluster.id=\xe4\n", b"", b"\x00" * 40, b"version=1\n"],
    ids=["bytes", "another encoding", "empty", "zeros", "half"],
)
@pytest.mark.parametrize("command", ["start -l 127.0.0.1:0 -d", "storage info -d", "storage format -d"])
def test_invalid_meta_properties_are_rejected_with_the_path(command: str, text: bytes, tmp_path: Path) -> None:
    meta = tmp_path / "meta.properties"
    meta.write_bytes(text)
    result = CliRunner().invoke(app, [*command.split(), str(tmp_path)])
    assert result.exit_code == 1, f"{result.output}{result.exception!r}"
    assert str(meta) in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert meta.read_bytes() == text


def test_up_names_the_node_with_invalid_meta_properties(tmp_path: Path) -> None:
    LocalCluster.open(tmp_path, brokers=1, port=9092)
    meta = tmp_path / "node-1" / "meta.properties"
    meta.write_bytes(b"\xff")
    result = CliRunner().invoke(app, ["up", "-d", str(tmp_path)])
    assert result.exit_code == 1, f"{result.output}{result.exception!r}"
    assert str(meta) in result.stderr
