"""`moldau storage format` writes the identity of a node and, for a controller, the initial voters."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from moldau.broker.drivers.quorum_records import voter_sets_in
from moldau.cli.main import app
from moldau.model.ids import Address
from moldau.storage.log_dir import MetaProperties, decode_id, encode_id

CLUSTER_ID = "AAECAwQFBgcICQoLDA0ODw"
ONE, TWO = encode_id(b"one" + bytes(13)), encode_id(b"two" + bytes(13))
VOTERS = f"1@host1:9093:{ONE},2@[::1]:9094:{TWO}"
CHECKPOINT = "__cluster_metadata-0/00000000000000000000-0000000000.checkpoint"

pytestmark = pytest.mark.proves("A4", part="storage and log dump")


def moldau(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["storage", "format", *arguments])
    assert result.exit_code == code, f"{result.output}{result.exception!r}"
    return result.stdout if code == 0 else result.stderr


def identity(folder: Path) -> MetaProperties:
    return MetaProperties.decode((folder / "meta.properties").read_bytes())


def test_initial_controllers_are_written_to_a_bootstrap_snapshot(tmp_path: Path) -> None:
    for node_id in (1, 2):
        folder = tmp_path / str(node_id)
        moldau("-d", str(folder), "-t", CLUSTER_ID, "--node-id", str(node_id), "--initial-controllers", VOTERS)
        assert identity(folder).cluster_id == CLUSTER_ID
        assert identity(folder).directory_id == decode_id((ONE, TWO)[node_id - 1])
    first, second = ((tmp_path / node_id / CHECKPOINT).read_bytes() for node_id in "12")
    (found,) = voter_sets_in(first)
    assert found.voters.ids == (1, 2)
    assert [each.endpoints for each in found.voters] == [
        (("CONTROLLER", Address("host1", 9093)),),
        (("CONTROLLER", Address("::1", 9094)),),
    ]
    assert voter_sets_in(second) == [found]


@pytest.mark.parametrize("flags", [(), ("--standalone",)])
def test_new_data_directory_is_not_reported_as_unclean(tmp_path: Path, flags: tuple[str, ...]) -> None:
    moldau("-d", str(tmp_path / "fresh"), *flags)
    shown = CliRunner().invoke(app, ["storage", "info", "-d", str(tmp_path / "fresh")]).stdout
    assert "last shutdown  none: no node has run here yet\n" in shown


def test_standalone_node_is_its_own_first_voter(tmp_path: Path) -> None:
    settings = tmp_path / "server.properties"
    settings.write_text(
        f"node.id=7\nlog.dirs={tmp_path}/data\ncontroller.listener.names=CONTROLLER\n"
        "listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093\n"
    )
    shown = json.loads(moldau("--config", str(settings), "--standalone", "--json"))
    assert (shown["node_id"], shown["folder"]) == (7, f"{tmp_path}/data")
    (found,) = voter_sets_in((tmp_path / "data" / CHECKPOINT).read_bytes())
    (voter,) = found.voters
    assert (voter.node_id, voter.directory_id) == (7, identity(tmp_path / "data").directory_id)
    assert voter.endpoints == (("CONTROLLER", Address("localhost", 9093)),)


@pytest.mark.proves("H6")
def test_joining_controller_has_no_initial_voters(tmp_path: Path) -> None:
    moldau("-d", str(tmp_path), "-t", CLUSTER_ID, "--node-id", "4", "--no-initial-controllers")
    assert not (tmp_path / CHECKPOINT).exists()
    state = json.loads((tmp_path / "__cluster_metadata-0" / "quorum-state").read_bytes())
    assert (state["leaderId"], state["leaderEpoch"], state["votedId"]) == (-1, 0, -1)
    result = CliRunner().invoke(app, ["start", "-d", str(tmp_path), "-l", "127.0.0.1:0", "-c", "node.id=4"])
    assert result.exit_code == 2
    assert "--no-initial-controllers" in result.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--standalone", "--no-initial-controllers"], "cannot be combined"),
        (["--standalone", "--initial-controllers", VOTERS], "cannot be combined"),
        (["--initial-controllers", "1@host1:9093"], "is not id@host:port:directoryId"),
        (["--initial-controllers", f"1@host1:{ONE}"], "is not host:port"),
        (["--initial-controllers", f"1@host1:9093:{ONE},1@host2:9093:{TWO}"], "appears twice"),
        (["--initial-controllers", ""], "at least one"),
        (["--node-id", "3", "--initial-controllers", VOTERS], "not among the initial controllers 1, 2"),
    ],
)
def test_invalid_format_options_are_rejected_and_write_nothing(flags: list[str], words: str, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    result = CliRunner().invoke(app, ["storage", "format", "-d", str(folder), *flags])
    assert result.exit_code in (1, 2)
    assert words in result.stderr
    assert not (folder / "meta.properties").exists()
    assert not (folder / "__cluster_metadata-0").exists()


def test_broker_without_controller_role_has_no_voters(tmp_path: Path) -> None:
    settings = tmp_path / "server.properties"
    settings.write_text(
        f"node.id=7\nlog.dirs={tmp_path}/data\nprocess.roles=broker\ncontroller.listener.names=CONTROLLER\n"
        "controller.quorum.bootstrap.servers=host1:9093\n"
    )
    assert "does not include controller" in moldau("--config", str(settings), "--standalone", code=1)
    moldau("--config", str(settings), "-t", CLUSTER_ID, "--initial-controllers", VOTERS)
    assert not (tmp_path / "data" / CHECKPOINT).exists()


def test_all_log_dirs_are_formatted_with_ids_of_their_own(tmp_path: Path) -> None:
    settings = tmp_path / "server.properties"
    folders = [tmp_path / name for name in ("meta", "one", "two")]
    settings.write_text(f"node.id=7\nlog.dirs={folders[1]},{folders[2]}\nmetadata.log.dir={folders[0]}\n")
    shown = json.loads(moldau("--config", str(settings), "--standalone", "--json"))
    assert shown["folders"] == [str(each) for each in folders]
    found = [identity(each) for each in folders]
    assert len({each.directory_id for each in found}) == 3
    assert {(each.cluster_id, each.node_id) for each in found} == {(shown["cluster_id"], 7)}
    assert [(each / CHECKPOINT).exists() for each in folders] == [True, False, False]
    assert "formatted already" in moldau("--config", str(settings), code=1)
    new = tmp_path / "three"
    moldau("-d", str(folders[0]), "-d", str(new), "--node-id", "7", "--ignore-formatted")
    assert identity(new).cluster_id == found[0].cluster_id
