"""Client settings of jobs, from a file and from options, are passed to source and sink."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from moldau.cli.client_options import client_settings, read_client_properties, use_client_settings
from moldau.cli.connection_options import Connection
from moldau.cli.main import app
from moldau.cli.option_groups import expand_option_groups
from moldau.cli.pipeline_offsets import OffsetRange
from moldau.cli.pipeline_option_groups import ReadOptions
from moldau.model.errors import InvalidConfig

FILE = """
# for the cluster of the office
security.protocol = SASL_SSL
sasl.mechanism:PLAIN
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
    username="alice" \\
    password="a=b";
! not this
ssl.truststore.type PEM
empty
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "client.properties"
    path.write_text(FILE)
    return path


def test_properties_file_is_parsed_like_in_java(config: Path) -> None:
    assert read_client_properties(config) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": (
            'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="a=b";'
        ),
        "ssl.truststore.type": "PEM",
        "empty": "",
    }
    config.write_text("=x")
    with pytest.raises(InvalidConfig, match=r"client\.properties:1: the name of the setting is missing"):
        read_client_properties(config)


def test_comment_does_not_continue_on_the_next_line(config: Path) -> None:
    config.write_text("  # in C:\\certs\\\nsecurity.protocol=SSL\n")
    assert read_client_properties(config) == {"security.protocol": "SSL"}


def test_backslashes_of_a_properties_file_are_escapes_as_in_java(config: Path) -> None:
    config.write_text('sasl.password=back\\\\slash\nsasl.jaas.config=Module required password="a\\\\"b";\n')
    assert read_client_properties(config) == {
        "sasl.password": "back\\slash",
        "sasl.jaas.config": 'Module required password="a\\"b";',
    }


@pytest.mark.parametrize("option", ["--command-config", "--sql", "--python", "--step"])
def test_file_that_is_not_utf8_is_one_line(tmp_path: Path, option: str) -> None:
    path = tmp_path / ("of_latin.py" if option == "--python" else "of_latin.sql")
    path.write_bytes("select 'Zürich'".encode("latin-1"))
    result = CliRunner().invoke(app, ["pipeline", "run", "transform", "-t", "a", "--to", "b", option, str(path)])
    assert result.exit_code == 2
    assert result.stderr == f"error: {path} is not UTF-8 text: invalid start byte at byte 9\n"


@pytest.mark.proves("D3", part="client settings")
def test_options_override_the_file_and_reach_source_and_sink(config: Path) -> None:
    connection = Connection(
        bootstrap_servers="there:9093", command_config=config, kafka=["ssl.truststore.type=JKS", "client.id=me"]
    )
    assert connection.is_secured
    assert connection.options["kafka.ssl.truststore.type"] == "JKS"
    source = ReadOptions().source(connection, ["t"], OffsetRange(starting="earliest"), "g")
    options = source.read_options()
    assert options["kafka.bootstrap.servers"] == "there:9093"
    assert options["kafka.client.id"] == "me"
    assert options["kafka.sasl.mechanism"] == "PLAIN"
    assert options["kafka.isolation.level"] == "read_committed"
    assert connection.connect_with_own_client() == "there:9093"
    assert client_settings()["sasl.mechanism"] == "PLAIN"
    use_client_settings({})


def test_bootstrap_servers_of_the_file_are_the_default(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("bootstrap.servers=office:9092\n")
    assert Connection(command_config=path).servers == "office:9092"
    assert Connection(bootstrap_servers="home:9092", command_config=path).servers == "home:9092"
    # An explicit default overrides the file, which may name another cluster.
    assert Connection(bootstrap_servers="localhost:9092", command_config=path).servers == "localhost:9092"
    assert Connection().servers == "localhost:9092"
    assert Connection(command_config=path).options == {}
    assert not Connection().is_secured


def test_invalid_settings_are_rejected_before_spark_starts(config: Path) -> None:
    words = ["pipeline", "run", "transform", "-t", "a", "--to", "b", "--command-config", str(config)]
    store = ["--kafka", "ssl.truststore.location=store.jks", "--kafka", "ssl.truststore.type=JKS"]
    result = CliRunner().invoke(app, [*words, "--kafka", "empty=", *store])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: Option 'kafka.")
    assert len(result.stderr.splitlines()) == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Colours:
    """A group of options."""

    front: Annotated[str, typer.Option("--front")]
    back: Annotated[str, typer.Option("--back", help="Behind it.")] = "white"


def test_option_group_is_expanded_to_its_options() -> None:
    seen: list[object] = []

    @expand_option_groups
    def paint(colours: Colours, what: Annotated[str, typer.Argument()], thick: bool = False) -> None:
        """Paint it."""
        seen.append((colours, what, thick))

    painting = typer.Typer()
    painting.command()(paint)
    result = CliRunner().invoke(painting, ["house", "--front", "red", "--thick"])
    assert result.exit_code == 0, result.output
    assert seen == [(Colours(front="red"), "house", True)]
    assert CliRunner().invoke(painting, ["house"]).exit_code == 2
    assert "Behind it." in CliRunner().invoke(painting, ["--help"]).output
