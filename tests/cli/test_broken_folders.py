"""A data folder whose `meta.properties` says nothing sensible is refused in one line that names the file."""

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
def test_a_folder_that_does_not_tell_whose_it_is_is_refused_by_the_name_of_the_file(
    command: str, text: bytes, tmp_path: Path
) -> None:
    meta = tmp_path / "meta.properties"
    meta.write_bytes(text)
    result = CliRunner().invoke(app, [*command.split(), str(tmp_path)])
    assert result.exit_code == 1, f"{result.output}{result.exception!r}"
    assert str(meta) in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert meta.read_bytes() == text


def test_a_node_of_a_local_cluster_whose_folder_is_broken_is_named(tmp_path: Path) -> None:
    LocalCluster.open(tmp_path, brokers=1, port=9092)
    meta = tmp_path / "node-1" / "meta.properties"
    meta.write_bytes(b"\xff")
    result = CliRunner().invoke(app, ["up", "-d", str(tmp_path)])
    assert result.exit_code == 1, f"{result.output}{result.exception!r}"
    assert str(meta) in result.stderr
