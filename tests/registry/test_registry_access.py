"""Users of the registry: TLS, logins with credentials of the cluster, and access to subjects by ACLs of topics."""

import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError
from served_registry import RegistryClient, record, served_registry

from moldau.cli.certificates import Authority
from moldau.registry.access import topic_of
from moldau.testing import Broker

A = record("A", a="int")
USERS = {"ann": "password of ann", "ben": "password of ben", "zoë": "pass:wörd"}
AUTHORIZER = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}


class Secured(NamedTuple):
    """A registry with logins and TLS."""

    client: RegistryClient
    tls: ssl.SSLContext
    authority: Authority
    directory: Path

    def user(self, name: str) -> RegistryClient:
        return self.client.as_user(f"{name}:{USERS[name]}", self.tls)


def allow(admin: AdminClient, user: str, topic: str, operation: AclOperation) -> None:
    acl = AclBinding(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        operation,
        AclPermissionType.ALLOW,
    )
    for outcome in admin.create_acls([acl]).values():
        outcome.result(30)


@pytest.fixture(scope="module")
def admin(secured_broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": secured_broker.bootstrap_servers, **secured_broker.librdkafka_settings})


@pytest.fixture(scope="module")
def secured_broker() -> Iterator[Broker]:
    with Broker(security="scram", settings=AUTHORIZER) as broker:
        yield broker


@pytest.fixture(scope="module")
def secured(secured_broker: Broker, admin: AdminClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Ann writes the topic orders, Ben reads it; all others have no ACL."""
    kind = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    changes: list[UserScramCredentialAlteration] = [
        UserScramCredentialUpsertion(user, kind, text.encode()) for user, text in USERS.items()
    ]
    for outcome in admin.alter_user_scram_credentials(changes).values():
        outcome.result(30)
    allow(admin, "ann", "orders", AclOperation.ALL)
    allow(admin, "ben", "orders", AclOperation.READ)
    directory = tmp_path_factory.mktemp("tls")
    authority = Authority.create()
    authority.save(directory)
    (directory / "registry.pem").write_text(authority.issue("registry", ["127.0.0.1"]))
    settings = [part for item in secured_broker.client_settings.items() for part in ("-X", "=".join(item))]
    options = ("--registry-login", "--certificate", str(directory / "registry.pem"), *settings)
    with served_registry(secured_broker.bootstrap_servers, *options) as (client, _):
        tls = ssl.create_default_context(cadata=authority.pem)
        yield Secured(client, tls, authority, directory)


@pytest.mark.parametrize(
    ("subject", "topic"),
    [
        ("orders-value", "orders"),
        ("orders-key", "orders"),
        ("my-orders-value", "my-orders"),
        ("orders-shop.Order", "orders"),
        ("shop.Order", "shop.Order"),
        (":.lab:orders-value", "orders"),
        (":.lab:", ""),
        ("shop/order.proto", "shop_order.proto"),
        ("-value", "-value"),
    ],
)
def test_subject_of_each_naming_strategy_belongs_to_a_topic(subject: str, topic: str) -> None:
    assert topic_of(subject) == topic


def test_request_without_valid_credentials_is_rejected(secured: Secured) -> None:
    for credentials in ("", "ann:wrong", "unknown:x", "ann", ":x", "ann\x00:x"):
        response = secured.client.as_user(credentials, secured.tls).get("/subjects")
        assert (response.status, response.code) == (401, 40101), credentials
    response = secured.client.as_user("", secured.tls).call("GET", "/subjects", Authorization="Bearer x")
    assert response.code == 40101
    assert secured.client.as_user("", secured.tls).get("/health").status == 200


@pytest.mark.proves("A6", part="a user's ACLs")
def test_cached_login_holds_for_its_password_only(secured: Secured) -> None:
    assert secured.user("ann").get("/contexts").status == 200
    assert secured.client.as_user("ann:wrong", secured.tls).get("/contexts").code == 40101


def test_user_name_and_password_may_have_any_characters(secured: Secured) -> None:
    assert secured.user("zoë").get("/subjects").body == []


@pytest.mark.proves("A6", part="a user's ACLs")
def test_operations_on_a_subject_need_acls_of_its_topic(secured: Secured, admin: AdminClient) -> None:
    ann, ben, stranger = (secured.user(name) for name in USERS)
    number = ann.register("orders-value", A).body["id"]
    for client in (ann, ben):
        assert client.get("/subjects").body == ["orders-value"]
        assert client.look_up("orders-value", A).body["id"] == number
        assert client.get(f"/schemas/ids/{number}").status == 200
        assert client.check("orders-value", A).body["is_compatible"] is True
        assert client.get(f"/schemas/ids/{number}/versions").body == [{"subject": "orders-value", "version": 1}]
    denied = ben.register("orders-value", A)
    assert (denied.status, denied.code) == (403, 40301)
    assert "User ben is denied operation Write on Subject: orders-value" in denied.body["message"]
    assert ben.delete("/subjects/orders-value").code == 40301
    assert ben.put("/config/orders-value", compatibility="NONE").code == 40301
    assert ann.put("/config/orders-value", compatibility="FULL").status == 200
    assert ann.register("payments-value", A).code == 40301

    assert stranger.get("/subjects").body == []
    assert stranger.get("/schemas").body == []
    for path in ("/subjects/orders-value/versions", "/config/orders-value", f"/schemas/ids/{number}"):
        assert stranger.get(path).code == 40301
    assert stranger.get(f"/schemas/ids/{number}/schema").code == 40301
    assert stranger.get("/config").status == 200
    allow(admin, "zoë", "orders", AclOperation.DESCRIBE)
    assert stranger.get(f"/schemas/ids/{number}").status == 200


@pytest.mark.proves("A6", part="a user's ACLs")
def test_settings_of_all_subjects_need_acls_of_the_cluster(secured: Secured, secured_broker: Broker) -> None:
    ann = secured.user("ann")
    for path in ("/config", "/config/:.lab:", "/contexts/.lab/config"):
        assert ann.put(path, compatibility="FULL").code == 40301
    assert ann.put("/mode", mode="READONLY").code == 40301
    settings = secured_broker.librdkafka_settings
    root = secured.client.as_user(f"{settings['sasl.username']}:{settings['sasl.password']}", secured.tls)
    assert root.put("/config", compatibility="BACKWARD").status == 200


@pytest.mark.proves("A6", part="a user's ACLs")
def test_reference_needs_describe_on_the_topic_of_its_subject(secured: Secured, secured_broker: Broker) -> None:
    settings = secured_broker.librdkafka_settings
    root = secured.client.as_user(f"{settings['sasl.username']}:{settings['sasl.password']}", secured.tls)
    root.register("secret", record("Secret", a="int"))
    references = [{"name": "Secret", "subject": "secret", "version": 1}]
    ann = secured.user("ann")
    assert ann.register("orders-key", record("K", a="Secret"), references=references).code == 40301
    assert ann.check("orders-value", record("K", a="Secret"), references=references).code == 40301
    assert root.register("orders-key", record("K", a="Secret"), references=references).status == 200


def test_confluents_client_logs_in_over_tls(secured: Secured) -> None:
    settings = {"url": secured.client.url, "ssl.ca.location": str(secured.directory / "ca.pem")}
    with SchemaRegistryClient({**settings, "basic.auth.user.info": f"ann:{USERS['ann']}"}) as client:
        number = client.register_schema("orders-shop.Line", Schema(A, "AVRO"))
        assert client.get_latest_version("orders-shop.Line").schema_id == number
        with pytest.raises(SchemaRegistryError) as denied:
            client.register_schema("other-value", Schema(A, "AVRO"))
        assert (denied.value.http_status_code, denied.value.error_code) == (403, 40301)


@pytest.mark.proves("A6", part="TLS")
def test_renewed_certificate_is_presented(secured: Secured) -> None:
    other = Authority.create("another authority")
    (secured.directory / "registry.pem").write_text(other.issue("registry", ["127.0.0.1"]))
    ann = secured.client.as_user(f"ann:{USERS['ann']}", ssl.create_default_context(cadata=other.pem))

    def is_trusted() -> bool:
        try:
            return ann.get("/contexts").status == 200
        except OSError:
            return False

    deadline = time.monotonic() + 30
    while not is_trusted():
        assert time.monotonic() < deadline


@pytest.mark.proves("A6", part="a user's ACLs")
def test_login_without_sasl_and_invalid_certificates_are_usage_errors(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")
    for options, reason in [
        (("--registry-login",), "--registry-login needs a listener with SASL"),
        (("--console-login",), "--console-login needs a listener with SASL"),
        (("--certificate", str(tmp_path / "empty.pem")), "--certificate"),
    ]:
        command = [sys.executable, "-P", "-m", "moldau.cli.main", "serve", *options]
        failed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert failed.returncode == 2
        assert reason in failed.stderr
