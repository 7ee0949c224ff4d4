"""Listeners in Kafka's syntax: names, addresses, advertised listeners, errors."""

import pytest

from moldau.model.errors import InvalidConfig
from moldau.model.ids import Address
from moldau.model.listeners import SecurityProtocol, is_wildcard, parse_address, parse_protocol_map, resolve_listeners


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:9092", Address("localhost", 9092)),
        (":9092", Address("", 9092)),
        ("0.0.0.0:0", Address("0.0.0.0", 0)),
        ("[::1]:9092", Address("::1", 9092)),
        ("[fe80::1%eth0]:1", Address("fe80::1%eth0", 1)),
        (" broker_1.example.org:65535 ", Address("broker_1.example.org", 65535)),
    ],
)
def test_address_has_a_host_and_a_port(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("localhost", "host:port"),
        ("localhost:", "host:port"),
        ("localhost:65536", "host:port"),
        ("localhost:-1", "host:port"),
        ("localhost:٩٠", "host:port"),
        ("::1:9092", "brackets"),
        ("[localhost]:9092", "not an IPv6"),
        ("[]:9092", "not an IPv6"),
        ("a b:9092", "neither a name nor an address"),
        ("x" * 10_000 + ":1", "neither a name nor an address"),
    ],
)
def test_invalid_listener_address_is_rejected(text: str, word: str) -> None:
    with pytest.raises(InvalidConfig, match=word) as error:
        parse_address(text)
    assert len(str(error.value)) < 400


def test_address_round_trips() -> None:
    for text in ("localhost:9092", "[::1]:9092"):
        assert str(parse_address(text)) == text


def test_concrete_host_is_advertised_unchanged() -> None:
    listeners = resolve_listeners(["PLAINTEXT://127.0.0.1:9092"])
    assert listeners.advertised == listeners.bound
    assert listeners.inter_broker == "PLAINTEXT"
    assert not listeners.warnings


@pytest.mark.parametrize("host", ["", "0.0.0.0", "[::]", "[0:0:0:0:0:0:0:0]"])
def test_wildcard_address_is_never_advertised(host: str) -> None:
    listeners = resolve_listeners([f"PLAINTEXT://{host}:9092"])
    assert listeners.advertised_on("PLAINTEXT") == Address("localhost", 9092)
    assert "advertised.listeners" in listeners.warnings[0]
    with pytest.raises(InvalidConfig, match="nonroutable"):
        resolve_listeners([f"PLAINTEXT://{host}:9092"], [f"PLAINTEXT://{host}:9092"])


def test_wildcard_controller_listener_is_not_a_warning() -> None:
    listeners = resolve_listeners(["PLAINTEXT://localhost:9092", "CONTROLLER://:9093"], controllers=["controller"])
    assert not listeners.warnings
    assert [each.name for each in listeners.for_clients] == ["PLAINTEXT"]


def test_client_gets_the_address_of_its_listener() -> None:
    listeners = resolve_listeners(
        ["INSIDE://:9092", "OUTSIDE://:9093"],
        ["INSIDE://broker.internal:9092", "OUTSIDE://[2001:db8::1]:19093"],
        "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        inter_broker="inside",
    )
    assert listeners.advertised_on("INSIDE") == Address("broker.internal", 9092)
    assert listeners.advertised_on("OUTSIDE") == Address("2001:db8::1", 19093)
    assert listeners.advertised_on("NOWHERE") is None
    assert listeners.inter_broker == "INSIDE"


def test_port_zero_is_advertised_as_the_bound_port() -> None:
    listeners = resolve_listeners(["PLAINTEXT://localhost:0"])
    assert listeners.advertised_on("PLAINTEXT", {"PLAINTEXT": 40123}) == Address("localhost", 40123)


def test_several_listeners_may_use_port_zero() -> None:
    resolve_listeners(["PLAINTEXT://localhost:0", "SSL://localhost:0"])


def test_one_port_may_have_an_ipv4_and_an_ipv6_address() -> None:
    listeners = resolve_listeners(["PLAINTEXT://127.0.0.1:9092", "SSL://[::1]:9092"])
    assert [each.protocol for each in listeners.bound] == [SecurityProtocol.PLAINTEXT, SecurityProtocol.SSL]


@pytest.mark.parametrize(
    ("listeners", "advertised", "word"),
    [
        (["localhost:9092"], [], "NAME://host:port"),
        (["://localhost:9092"], [], "NAME://host:port"),
        (["PLAINTEXT://localhost"], [], "host:port"),
        (["PLAINTEXT://localhost:1", "plaintext://localhost:2"], [], "PLAINTEXT twice"),
        (["PLAINTEXT://localhost:1", "SSL://localhost:1"], [], "different port"),
        (["PLAINTEXT://127.0.0.1:1", "SSL://127.0.0.2:1"], [], "different port"),
        (["INSIDE://localhost:1"], [], "No security protocol defined for listener INSIDE"),
        (["PLAINTEXT://localhost:1"], ["SSL://localhost:1"], "SSL, which listeners does not define"),
        (["PLAINTEXT://localhost:1"], ["PLAINTEXT://a:1", "PLAINTEXT://b:1"], "PLAINTEXT twice"),
    ],
)
def test_invalid_listeners_are_rejected(listeners: list[str], advertised: list[str], word: str) -> None:
    with pytest.raises(InvalidConfig, match=word):
        resolve_listeners(listeners, advertised)


def test_inter_broker_listener_must_be_advertised_and_not_for_controllers() -> None:
    bound = ["PLAINTEXT://localhost:9092", "CONTROLLER://localhost:9093"]
    for name in ("SSL", "CONTROLLER"):
        with pytest.raises(InvalidConfig, match=r"inter\.broker\.listener\.name"):
            resolve_listeners(bound, inter_broker=name, controllers=["CONTROLLER"])


def test_controller_listener_must_exist_and_leave_one_for_clients() -> None:
    with pytest.raises(InvalidConfig, match="does not define"):
        resolve_listeners(["PLAINTEXT://localhost:9092"], controllers=["CONTROLLER"])
    with pytest.raises(InvalidConfig, match="none is left for clients"):
        resolve_listeners(["PLAINTEXT://localhost:9092"], controllers=["PLAINTEXT"])


def test_protocol_map_is_case_insensitive() -> None:
    assert parse_protocol_map("inside:plaintext, OUTSIDE:SASL_SSL") == {
        "INSIDE": SecurityProtocol.PLAINTEXT,
        "OUTSIDE": SecurityProtocol.SASL_SSL,
    }
    assert parse_protocol_map("")["SASL_PLAINTEXT"] is SecurityProtocol.SASL_PLAINTEXT


@pytest.mark.parametrize("text", ["INSIDE", "INSIDE:TLS", "A:SSL,a:PLAINTEXT"])
def test_invalid_protocol_map_is_rejected(text: str) -> None:
    with pytest.raises(InvalidConfig, match=r"listener\.security\.protocol\.map"):
        parse_protocol_map(text)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "example.org"])
def test_concrete_host_is_not_a_wildcard(host: str) -> None:
    assert not is_wildcard(host)
