"""Users, ACLs, quotas and tokens of a data directory: what a broker describes, and whether users can log in."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import confluent_kafka
from acl_matrix import log_in
from apache_kafka import ApacheKafka, free_ports
from confluent_kafka import admin
from protocol_requests import BrokerConnection, plain

from moldau.broker.authorizer import STANDARD_AUTHORIZER
from moldau.testing import Broker
from moldau.wire import messages as m

TOPIC: Final = "orders"
WAIT_S: Final = 60.0
LISTENER: Final = "listener.name.sasl_plaintext"
MODULES: Final = "org.apache.kafka.common.security"
SETTINGS: Final = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:ANONYMOUS",
    "delegation.token.secret.key": "a secret of all brokers",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    f"{LISTENER}.plain.sasl.jaas.config": f'{MODULES}.plain.PlainLoginModule required user_owner="owner";',
    f"{LISTENER}.scram-sha-256.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required;",
    f"{LISTENER}.scram-sha-512.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required;",
}
SHA_256, SHA_512 = admin.ScramMechanism.SCRAM_SHA_256, admin.ScramMechanism.SCRAM_SHA_512
OF_ACL: Final = (
    "resource_type",
    "resource_name",
    "resource_pattern_type",
    "principal",
    "host",
    "operation",
    "permission_type",
)
Entity = dict[str, str | None]


class SecuredMoldau(Broker):
    """Moldau with a listener for its administrator, and one with SASL."""

    def __init__(self, data: Path) -> None:
        of_admin, of_users = (f"localhost:{port}" for port in free_ports(2))
        listeners = f"PLAINTEXT://{of_admin},SASL_PLAINTEXT://{of_users}"
        super().__init__(data=data, listen=None, settings=SETTINGS | {"listeners": listeners})
        self.sasl_servers = of_users

    @property
    def bootstrap_servers(self) -> str:
        """The address of the administrator's listener."""
        return super().bootstrap_servers.split(",")[0]


class SecuredKafka(ApacheKafka):
    """Apache Kafka with the same settings."""

    def __init__(self, data: Path) -> None:
        super().__init__(data, "4.3", SETTINGS, has_sasl=True)


Secured = SecuredMoldau | SecuredKafka


# What the administrator does -----------------------------------------------------------------------------------------


def ask(broker: Secured, version: int, request: Any) -> Any:
    connection = BrokerConnection(broker.bootstrap_servers)
    try:
        return connection.ask(version, request)
    finally:
        connection.close()


def create_topic(broker: Secured) -> None:
    client = admin.AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    client.create_topics([admin.NewTopic(TOPIC, 1, 1)])[TOPIC].result(WAIT_S)


def alter_users(broker: Secured, *changes: admin.UserScramCredentialAlteration) -> None:
    client = admin.AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for change in changes:  # librdkafka takes one change of a user at a time
        for future in client.alter_user_scram_credentials([change]).values():
            future.result(WAIT_S)


def user(name: str, mechanism: admin.ScramMechanism, password: str, iterations: int = 4096) -> Any:
    return admin.UserScramCredentialUpsertion(name, admin.ScramCredentialInfo(mechanism, iterations), password.encode())


def create_acls(broker: Secured, *acls: Sequence[Any]) -> None:
    """Create ACLs of a kind, a name, a type of pattern, a principal, a host, an operation and a permission."""
    creations = [m.CreateAclsRequest.AclCreation(**dict(zip(OF_ACL, acl, strict=True))) for acl in acls]
    response = ask(broker, 3, m.CreateAclsRequest(creations=creations))
    assert [each.error_code for each in response.results] == [0] * len(acls), plain(response)


def delete_acls_of(broker: Secured, principal: str) -> None:
    chosen = m.DeleteAclsRequest.DeleteAclsFilter(
        resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1, principal_filter=principal
    )
    response = ask(broker, 3, m.DeleteAclsRequest(filters=[chosen]))
    assert response.filter_results[0].matching_acls


def alter_quotas(broker: Secured, entity: Entity, **quotas: float | None) -> None:
    request = m.AlterClientQuotasRequest
    parts = [request.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()]
    ops = [request.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in quotas.items()]
    response = ask(broker, 1, request(entries=[request.EntryData(entity=parts, ops=ops)]))
    assert [each.error_code for each in response.entries] == [0], plain(response)


def create_token(broker: Secured) -> bytes:
    """Create a delegation token of the user `owner`, and return its HMAC."""
    connection = log_in(broker.sasl_servers, "owner")
    try:
        response = connection.ask(3, m.CreateDelegationTokenRequest(max_lifetime_ms=3_600_000))
    finally:
        connection.close()
    assert response.error_code == 0, plain(response)
    return bytes(response.hmac)


# What can be seen ----------------------------------------------------------------------------------------------------


def described(broker: Secured) -> dict[str, list[str]]:
    """The users, ACLs, quotas and tokens that the broker describes, in an order of their own."""
    of_any = m.DescribeAclsRequest(resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1)
    acls = ask(broker, 3, of_any).resources
    quotas = ask(broker, 1, m.DescribeClientQuotasRequest()).entries
    users = ask(broker, 0, m.DescribeUserScramCredentialsRequest()).results
    connection = log_in(broker.sasl_servers, "owner")
    try:
        tokens = connection.ask(3, m.DescribeDelegationTokenRequest()).tokens
    finally:
        connection.close()
    return {
        "ACLs": sorted(
            f"{each.resource_type} {each.resource_name} {each.pattern_type} {plain(acl, ())}"
            for each in acls
            for acl in each.acls
        ),
        "quotas": sorted(
            f"{sorted((part.entity_type, part.entity_name or '') for part in each.entity)} "
            f"{sorted((quota.key, quota.value) for quota in each.values)}"
            for each in quotas
        ),
        "users": sorted(str((each.user, sorted(map(str, plain(each.credential_infos, ()))))) for each in users),
        "tokens": sorted(str(plain(each, ())) for each in tokens),
    }


def produces(broker: Secured, name: str, mechanism: admin.ScramMechanism, password: str) -> str:
    """Log in and produce a record; return the name of the error, or nothing."""
    errors: list[str] = []

    def failed(error: confluent_kafka.KafkaError) -> None:
        errors.append(error.name())

    def delivered(error: confluent_kafka.KafkaError | None, _: object) -> None:
        errors.append("" if error is None else error.name())

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.sasl_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism.name.replace("_", "-"),
            "sasl.username": name,
            "sasl.password": password,
            "error_cb": failed,
            "log_level": 0,
        }
    )
    producer.produce(TOPIC, b"by " + name.encode(), partition=0, on_delivery=delivered)
    deadline_s = time.monotonic() + WAIT_S
    while not errors and time.monotonic() < deadline_s:
        producer.poll(0.1)
    producer.purge()
    return errors[0] if errors else "no response"


def until(look: Callable[[], object], expected: object) -> None:
    """Wait: the broker of Apache Kafka lags behind its controller."""
    deadline_s = time.monotonic() + WAIT_S
    while (seen := look()) != expected and time.monotonic() < deadline_s:
        time.sleep(0.1)  # polls another process
    assert seen == expected
