"""Roles, controller listeners and voters: accepted like Kafka, or rejected with advice."""

import pytest

from moldau.model.errors import InvalidConfig
from moldau.model.ids import Address
from moldau.node.configuration import Configuration, load_configuration

BOTH_LISTENERS = "listeners=PLAINTEXT://a:9092,CONTROLLER://a:9093"
NAMES = "controller.listener.names=CONTROLLER"
VOTERS = "controller.quorum.voters=1@a:9093,2@b:9093,3@c:9093"


def load(*overrides: str) -> Configuration:
    return load_configuration(overrides=overrides)


def test_node_without_quorum_settings_is_standalone() -> None:
    configuration = load()
    assert configuration.quorum.is_standalone
    assert (configuration.is_broker, configuration.is_controller) == (True, True)
    assert configuration.listeners.for_controllers == ()


@pytest.mark.parametrize(
    "overrides",
    [
        [BOTH_LISTENERS, NAMES, "controller.quorum.voters=1@a:9093"],
        [BOTH_LISTENERS, NAMES, "controller.quorum.bootstrap.servers=a:9093"],
        ["listeners=PLAINTEXT://:9092,CONTROLLER://:9093", NAMES, "controller.quorum.bootstrap.servers=localhost:9093"],
    ],
)
def test_node_that_is_its_only_controller_is_standalone(overrides: list[str]) -> None:
    assert load(*overrides).quorum.is_standalone


@pytest.mark.parametrize(
    "overrides",
    [
        [BOTH_LISTENERS, NAMES, VOTERS],
        [BOTH_LISTENERS, NAMES, "controller.quorum.bootstrap.servers=b:9093"],
        [BOTH_LISTENERS, NAMES, "controller.quorum.bootstrap.servers=a:9093,b:9093"],
        ["process.roles=broker", NAMES, "controller.quorum.bootstrap.servers=localhost:9093"],
        [
            "process.roles=controller",
            "listeners=CONTROLLER://:9093",
            NAMES,
            "controller.quorum.voters=1@localhost:9093",
        ],
    ],
)
def test_node_with_other_controllers_or_one_role_is_not_standalone(overrides: list[str]) -> None:
    assert not load(*overrides).quorum.is_standalone


def test_voters_and_bootstrap_servers_are_parsed() -> None:
    quorum = load(BOTH_LISTENERS, NAMES, VOTERS, "controller.quorum.bootstrap.servers=b:9093,[::1]:9094").quorum
    assert quorum.voters == {1: Address("a", 9093), 2: Address("b", 9093), 3: Address("c", 9093)}
    assert quorum.addresses == (*quorum.voters.values(), Address("::1", 9094))


def test_controller_listener_is_advertised_as_bound_by_default() -> None:
    plain = load(BOTH_LISTENERS, NAMES, VOTERS, "advertised.listeners=PLAINTEXT://x:1").listeners
    assert plain.advertised_on("CONTROLLER") == Address("a", 9093)
    assert plain.advertised_on("PLAINTEXT") == Address("x", 1)
    listeners = load(BOTH_LISTENERS, NAMES, VOTERS, "advertised.listeners=PLAINTEXT://x:1,CONTROLLER://x:2").listeners
    assert listeners.advertised_on("CONTROLLER") == Address("x", 2)
    assert [each.name for each in listeners.for_clients] == ["PLAINTEXT"]
    assert [each.name for each in listeners.for_controllers] == ["CONTROLLER"]


def test_controller_only_node_has_no_client_listener() -> None:
    listeners = load("process.roles=controller", "listeners=CONTROLLER://a:9093", NAMES, VOTERS).listeners
    assert (listeners.for_clients, listeners.inter_broker) == ((), "")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["controller.quorum.voters=a:9093"], "is not id@host:port"),
        (["controller.quorum.voters=99999999999@a:9093"], "is not id@host:port"),
        (["controller.quorum.voters=1@a"], "is not host:port"),
        (["controller.quorum.voters=1@a:0"], "must have a host and a port"),
        (["controller.quorum.voters=1@:9093"], "must have a host and a port"),
        (["controller.quorum.voters=1@a:1,1@b:1"], "names node 1 twice"),
        (["controller.quorum.voters="], "must not be empty"),
        (["controller.quorum.bootstrap.servers=a"], "is not host:port"),
        ([VOTERS], "controller.listener.names must contain at least one value"),
        ([BOTH_LISTENERS, NAMES, VOTERS, "node.id=4"], "the node id 4 must be included in the set of voters"),
        (["process.roles=broker", NAMES, VOTERS], "the node id 1 must not be included"),
        (["process.roles=broker", "node.id=9", VOTERS], "with just the broker role"),
        (["process.roles=broker", "node.id=9", BOTH_LISTENERS, NAMES, VOTERS], "must not contain a value appearing"),
        (["process.roles=broker", NAMES], "either controller.quorum.bootstrap.servers or controller.quorum.voters"),
        (["process.roles=controller", VOTERS], "at least one value appearing in the 'listeners'"),
        (["process.roles=controller", BOTH_LISTENERS, NAMES, VOTERS], "must only contain controller listeners"),
        (["listeners=PLAINTEXT://a:9092", "controller.listener.names=OTHER"], "which listeners does not define"),
        ([BOTH_LISTENERS, "controller.listener.names=PLAINTEXT,CONTROLLER"], "none is left for clients"),
    ],
)
def test_inconsistent_quorum_settings_are_rejected(overrides: list[str], words: str) -> None:
    with pytest.raises(InvalidConfig) as error:
        load(*overrides)
    assert words in str(error.value)
