"""`moldau features` on a broker."""

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from moldau.cli.main import app
from moldau.client.features import Features, Levels, levels_of_release, release_of
from moldau.testing import Broker

pytestmark = pytest.mark.proves("A4", part="cluster state")

Run = Callable[..., str]
NEW_LEVEL = 25
LAST_LEVEL = 30


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def features(broker: Broker) -> Run:
    def run(*arguments: str, code: int = 0) -> str:
        environment = {**os.environ, "MOLDAU_BOOTSTRAP_SERVERS": broker.bootstrap_servers}
        done = CliRunner().invoke(app, ["features", *arguments], env=environment)
        assert done.exit_code == code, f"{done.output}{done.exception!r}"
        return done.stderr if code else done.stdout

    return run


def level_of(features: Run, name: str) -> Any:
    return {each["name"]: each["level"] for each in json.loads(features("list", "--json"))}[name]


def test_upgrade_to_a_release_raises_what_is_below_it(features: Run) -> None:
    listed = {each["name"]: each for each in json.loads(features("list", "--json"))}
    metadata = listed["metadata.version"]
    assert (metadata["level"], metadata["release"]) == (NEW_LEVEL, "4.0")
    assert metadata["supported"] == [{"broker": 1, "lowest": 19, "highest": LAST_LEVEL}]
    planned = json.loads(features("upgrade", "--release-version", "4.3.0", "--dry-run", "--json"))
    change = {"name": "metadata.version", "old_level": NEW_LEVEL, "new_level": LAST_LEVEL}
    assert planned == {"is_dry_run": True, "features": [change]}
    assert level_of(features, "metadata.version") == NEW_LEVEL
    assert features("upgrade", "--release-version", "4.3") == "metadata.version upgraded from 25 to 30\n"
    assert level_of(features, "metadata.version") == LAST_LEVEL
    assert features("upgrade", "--release-version", "4.1") == "nothing to upgrade\n"
    assert "metadata.version                     30  4.3      19-30" in features("list")


def test_upgrade_reports_what_the_controller_rejects(features: Run) -> None:
    shown = features("upgrade", "--feature", "group.version=1", "--feature", "share.version=9", code=1)
    assert "Invalid update version 9 for feature share.version" in shown
    assert "Can't downgrade" in features("upgrade", "--feature", "group.version=0", code=1)
    assert level_of(features, "group.version") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give either --release-version X or --feature NAME=LEVEL"),
        (("--release-version", "4.2", "--feature", "a=1"), "give either"),
        (("--release-version", "5.0"), "--release-version 5.0 is not known; use one of 3.7,"),
        (("--feature", "group.version=one"), "the level must be a number from 0 to 32767"),
        (("--feature", "group.version"), "write it as KEY=VALUE"),
    ],
)
def test_upgrade_rejects_invalid_options(features: Run, arguments: tuple[str, ...], message: str) -> None:
    assert message in features("upgrade", *arguments, code=2)


def test_levels_of_releases() -> None:
    assert levels_of_release("3.8") == {"metadata.version": 20}
    assert set(levels_of_release("4.0")) == {
        "metadata.version",
        "kraft.version",
        "group.version",
        "transaction.version",
    }
    assert levels_of_release("4.3")["share.version"] == 1
    assert [release_of(level) for level in (7, 19, 22, 25, 26, 30, 31)] == [
        None,
        "3.7",
        "4.0",
        "4.0",
        "4.1",
        "4.3",
        None,
    ]


def test_supported_levels_are_those_of_every_broker() -> None:
    old, new = {"a": Levels(0, 1), "b": Levels(0, 1)}, {"a": Levels(1, 3)}
    found = Features({"c": 1}, {1: old, 2: new}, ())
    assert found.names == ["a", "b", "c"]
    assert found.supported_by_all("a") == Levels(1, 1)
    assert found.supported_by_all("b") is None
