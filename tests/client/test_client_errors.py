"""Bootstrap addresses, backoff, and error messages of the client."""

import random

import pytest

from moldau.client.addresses import parse_bootstrap
from moldau.client.backoff import Backoff
from moldau.client.errors import RETRIABLE, STALE_METADATA, ConnectionLost, cannot_reach, check, error_of
from moldau.model.errors import ErrorCode, KafkaError, OffsetOutOfRange
from moldau.model.ids import Address


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("localhost:9092", [("localhost", 9092)]),
        ("kafka", [("kafka", 9092)]),
        (" a:1 , b:2,", [("a", 1), ("b", 2)]),
        ("[::1]:9094", [("::1", 9094)]),
        ("[::1]", [("::1", 9092)]),
        ("PLAINTEXT://host:7", [("host", 7)]),
    ],
)
def test_addresses_are_parsed(text: str, addresses: list[tuple[str, int]]) -> None:
    assert parse_bootstrap(text) == [Address(*each) for each in addresses]


@pytest.mark.parametrize("text", ["", ",", "a:", ":9092", "a:b", "a:0", "a:65536", "::1", "[::1", "[::1]9092", "a:1:2"])
def test_invalid_address_is_rejected_with_a_hint(text: str) -> None:
    with pytest.raises(ValueError, match=r"address|port|no bootstrap server"):
        parse_bootstrap(text)


def test_backoff_doubles_up_to_its_limit_and_ends_before_the_deadline() -> None:
    backoff = Backoff(random.Random(3), first_ms=100, longest_ms=1000, deadline_ms=5000)
    now_ms, waits = 0.0, []
    while (wait_ms := backoff.next_wait_ms(now_ms)) is not None:
        waits.append(wait_ms)
        now_ms += wait_ms
    assert now_ms < 5000
    for wait_ms, plain_ms in zip(waits, [100, 200, 400, 800, 1000, 1000], strict=False):
        assert 0.8 * plain_ms <= wait_ms <= 1.2 * plain_ms


def test_backoff_has_jitter() -> None:
    one, other = (Backoff(random.Random(seed), 100, 1000, 1e9) for seed in (1, 2))
    assert one.next_wait_ms(0) != other.next_wait_ms(0)


def test_every_error_code_has_its_own_exception() -> None:
    for code in ErrorCode:
        assert error_of(code).code is code
    assert type(error_of(1)) is OffsetOutOfRange
    assert type(error_of(89)) is type(error_of(89))


def test_newer_error_code_is_an_unknown_server_error() -> None:
    assert error_of(30_000).code is ErrorCode.UNKNOWN_SERVER_ERROR


def test_check_raises_nothing_without_an_error() -> None:
    check(0)
    with pytest.raises(KafkaError, match="offset out of range"):
        check(1)
    with pytest.raises(KafkaError, match="said the broker"):
        check(1, "said the broker")


def test_stale_metadata_errors_are_retriable() -> None:
    assert STALE_METADATA < RETRIABLE
    assert ErrorCode.MESSAGE_TOO_LARGE not in RETRIABLE


def test_unreachable_error_names_addresses_with_a_hint() -> None:
    rejected = ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 9092)")
    local = cannot_reach([(Address("localhost", 9092), rejected)])
    assert str(local) == ("cannot reach localhost:9092: connection refused; is the broker running? try: moldau start")
    far = cannot_reach(
        [
            (Address("a", 1), TimeoutError("connection timed out after 10 s")),
            (Address("b", 2), OSError(113, "No route to host")),
        ]
    )
    assert "cannot reach a:1: connection timed out after 10 s; cannot reach b:2: no route to host" in str(far)
    assert "moldau start" not in str(far)


def test_unreachable_error_groups_addresses_by_cause_without_a_superfluous_hint() -> None:
    lost = [
        (Address("a", port), ConnectionLost(f"lost the connection to a:{port}: the broker closed it", was_sent=False))
        for port in (1, 2)
    ]
    assert str(cannot_reach(lost)) == "cannot reach a:1, a:2: the broker closed it"
    tls = [(Address("localhost", 9093), OSError("TLS handshake failed: certificate rejected"))]
    assert str(cannot_reach(tls)) == "cannot reach localhost:9093: TLS handshake failed: certificate rejected"
