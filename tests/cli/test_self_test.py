"""`moldau self-test`: it passes on a cluster that serves, names the check that fails, and removes what it made."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from moldau.cli.main import app
from moldau.cli.round_trip import RoundTrip
from moldau.client.async_client import AsyncClient
from moldau.client.types import ProduceResult
from moldau.model.ids import Address
from moldau.node.ports.clock import SystemClock
from moldau.node.ports.randomness import system_random
from moldau.node.ports.sockets import SocketNetwork
from moldau.testing import Broker

pytestmark = pytest.mark.proves("A4", part="self-test")

CHECKS = ["cluster", "topic", "produce", "consume", "transaction", "group", "cleanup"]
SHORT_MS = 300


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(transaction_max_timeout_ms=20_000) as running:
        yield running


def moldau(broker: Broker, *arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, [*arguments, "-b", broker.bootstrap_servers])
    assert result.exit_code == code, f"{result.output}{result.exception!r}"
    return result.stdout


def remains(broker: Broker) -> list[Any]:
    topics = json.loads(moldau(broker, "topic", "list", "--json"))
    groups = json.loads(moldau(broker, "group", "list", "--json"))
    return [each for each in (*topics, *groups) if "self-test" in str(each)]


def test_serving_broker_passes_and_nothing_remains(broker: Broker) -> None:
    shown = json.loads(moldau(broker, "self-test", "--timeout", "15s", "--json"))
    assert [each["name"] for each in shown["checks"]] == CHECKS
    assert shown["is_passed"]
    assert all(each["is_passed"] and each["elapsed_ms"] >= 0 for each in shown["checks"])
    assert shown["topic"].startswith("moldau-self-test-")
    assert remains(broker) == []


def test_failing_check_is_named_and_nothing_remains(broker: Broker) -> None:
    """The transaction's timeout is above transaction.max.timeout.ms."""
    lines = moldau(broker, "self-test", "--timeout", "30s", code=1).splitlines()
    results = {line.split()[1]: line.split()[0] for line in lines[1:8] if len(line.split()) > 1}
    assert results == {
        "cluster": "ok",
        "topic": "ok",
        "produce": "ok",
        "consume": "ok",
        "transaction": "FAILED",
        "cleanup": "ok",
    }
    assert lines[-1] == "failed"
    assert remains(broker) == []


class DroppingClient(AsyncClient):
    """A client whose records are acknowledged, but not stored."""

    async def produce(self, *_arguments: Any, **_options: Any) -> ProduceResult:
        return ProduceResult(0)


class DuplicatingClient(AsyncClient):
    """A client whose records are stored twice."""

    async def produce(self, *arguments: Any, **options: Any) -> ProduceResult:
        await super().produce(*arguments, **options)
        return await super().produce(*arguments, **options)


async def run_checks(client_type: type[AsyncClient], broker: Broker) -> RoundTrip:
    host, port = broker.bootstrap_servers.split(":")
    async with client_type(SocketNetwork(), SystemClock(), system_random(), [Address(host, int(port))]) as client:
        await client.refresh([])
        trip = RoundTrip(client, SystemClock(), "moldau-self-test-x", SHORT_MS)
        await trip.run()
        return trip


def test_acknowledged_records_that_are_lost_fail_the_check(broker: Broker) -> None:
    trip = asyncio.run(run_checks(DroppingClient, broker))
    assert not trip.is_passed
    failed = next(each for each in trip.results if not each.is_passed)
    assert (failed.name, failed.detail) == ("consume", "partition 0 could be read up to offset 0 only, not to 10")
    assert remains(broker) == []


def test_duplicated_records_fail_the_check(broker: Broker) -> None:
    trip = asyncio.run(run_checks(DuplicatingClient, broker))
    failed = next(each for each in trip.results if not each.is_passed)
    assert failed.name == "consume"
    assert failed.detail == "partition 0 has 20 records, not the 10 written ones"
    assert remains(broker) == []


def test_unreachable_cluster_is_an_error() -> None:
    result = CliRunner().invoke(app, ["self-test", "--timeout", "1s", "-b", "127.0.0.1:9"])
    assert result.exit_code == 1, result.output
    assert "127.0.0.1:9" in result.stderr
