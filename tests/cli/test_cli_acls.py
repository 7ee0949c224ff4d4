"""`moldau acl` against a broker with an authorizer, and the arguments that it rejects."""

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from moldau.broker.authorizer import STANDARD_AUTHORIZER
from moldau.cli.main import app
from moldau.testing.broker import Broker

Moldau = Callable[..., str]
SETTINGS = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings=SETTINGS) as running:
        yield running


def command(servers: str) -> Moldau:
    environment = {**os.environ, "MOLDAU_BOOTSTRAP_SERVERS": servers}

    def run(*arguments: str, text: str = "", code: int = 0) -> str:
        result = CliRunner().invoke(app, ["acl", *arguments], input=text, env=environment)
        assert result.exit_code == code, f"{result.output}{result.exception!r}"
        return result.stdout if code == 0 else result.stderr

    return run


@pytest.fixture
def moldau(broker: Broker) -> Iterator[Moldau]:
    run = command(broker.bootstrap_servers)
    yield run
    run("delete", "--all", "--yes")


@pytest.fixture
def offline() -> Moldau:
    return command("localhost:1")


def rows(moldau: Moldau, *arguments: str) -> list[tuple[Any, ...]]:
    found = json.loads(moldau("list", "--json", *arguments))
    return [(each["resource"], each["name"], each["operation"], each["principal"]) for each in found]


def test_allowed_operations_are_listed(moldau: Moldau) -> None:
    moldau("allow", "--principal", "alice", "--topic", "orders", "--operation", "read,write", "--host", "10.0.0.1")
    found = json.loads(moldau("list", "--json"))
    assert [each.pop("operation") for each in found] == ["read", "write"]
    assert (
        found
        == [
            {
                "permission": "allow",
                "principal": "User:alice",
                "resource": "topic",
                "name": "orders",
                "pattern": "literal",
                "host": "10.0.0.1",
            }
        ]
        * 2
    )


def test_denied_operation_is_listed(moldau: Moldau) -> None:
    moldau("deny", "-p", "User:*", "-t", "orders", "-o", "delete")
    (found,) = json.loads(moldau("list", "--json"))
    assert (found["permission"], found["principal"], found["host"]) == ("deny", "User:*", "*")


def test_prefixed_names_are_listed_by_the_topics_that_they_match(moldau: Moldau) -> None:
    moldau("allow", "-p", "alice", "-t", "orders-", "--prefixed", "-o", "read")
    moldau("allow", "-p", "alice", "-t", "other", "-o", "read")
    assert rows(moldau, "-t", "orders-1", "--matching") == [("topic", "orders-", "read", "User:alice")]
    assert rows(moldau, "-t", "orders-1") == []
    assert rows(moldau, "-t", "orders-", "--prefixed") == [("topic", "orders-", "read", "User:alice")]


def test_producer_and_consumer_get_what_they_need(moldau: Moldau) -> None:
    moldau("allow", "-p", "alice", "-t", "orders", "-g", "readers", "--txn", "x", "--producer", "--consumer")
    found = {(kind, operation) for kind, _, operation, _ in rows(moldau)}
    assert found == {
        ("topic", "read"),
        ("topic", "write"),
        ("topic", "create"),
        ("topic", "describe"),
        ("group", "read"),
        ("transactional_id", "write"),
        ("transactional_id", "describe"),
    }


def test_cluster_and_users_are_resources(moldau: Moldau) -> None:
    moldau("allow", "-p", "alice", "--cluster", "-o", "alter-configs")
    moldau("allow", "-p", "alice", "--user", "bob", "-o", "create-tokens")
    assert rows(moldau) == [
        ("cluster", "kafka-cluster", "alter_configs", "User:alice"),
        ("user", "bob", "create_tokens", "User:alice"),
    ]


def test_delete_removes_only_what_is_selected(moldau: Moldau) -> None:
    moldau("allow", "-p", "alice", "-p", "bob", "-t", "orders", "-o", "read,write")
    output = moldau("delete", "-p", "alice", "-o", "write", "--yes")
    assert "User:alice" in output
    left = {(operation, principal) for _, _, operation, principal in rows(moldau)}
    assert left == {("read", "User:alice"), ("read", "User:bob"), ("write", "User:bob")}


def test_delete_asks_and_can_show_only(moldau: Moldau) -> None:
    moldau("allow", "-p", "alice", "-t", "orders", "-o", "read")
    assert "orders" in moldau("delete", "-t", "orders", "--dry-run")
    moldau("delete", "-t", "orders", text="n\n", code=1)
    assert len(rows(moldau)) == 1
    moldau("delete", "-t", "orders", text="y\n")
    assert rows(moldau) == []


def test_rejected_acl_is_an_error(moldau: Moldau) -> None:
    assert "READ on TOPIC" in moldau("allow", "-p", "alice", "-t", "", "-o", "read", code=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("allow", "-t", "t", "-o", "read"), "--principal"),
        (("allow", "-p", "a", "-o", "read"), "resource"),
        (("allow", "-p", "a", "-t", "t"), "--operation"),
        (("allow", "-p", "a", "-t", "t", "-o", "fly"), "--operation fly is unknown"),
        (("allow", "-p", ":a", "-t", "t", "-o", "read"), "TYPE:NAME"),
        (("allow", "-p", "a", "--consumer", "-t", "t"), "--group"),
        (("allow", "-p", "a", "--producer"), "--topic"),
        (("allow", "-p", "a", "-t", "*", "--prefixed", "-o", "read"), "--prefixed"),
        (("delete", "--yes"), "--all"),
    ],
)
def test_incomplete_options_are_rejected(arguments: tuple[str, ...], message: str, offline: Moldau) -> None:
    assert message in offline(*arguments, code=2)


def test_without_an_authorizer_the_error_names_the_setting() -> None:
    with Broker() as broker:
        message = command(broker.bootstrap_servers)("list", code=1)
    assert "authorizer.class.name" in message
