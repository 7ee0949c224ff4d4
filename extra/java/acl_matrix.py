"""Two brokers under the same ACLs of one user, and what each lets the user see of every API."""

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from sys import path
from typing import Any, Final, NamedTuple

from protocol_requests import CLOSED, BrokerConnection, plain

from moldau.broker.access import Operation, ResourceKind
from moldau.broker.authorizer import STANDARD_AUTHORIZER
from moldau.wire import messages as m

path.append(str(Path(__file__).parents[2] / "tests/broker"))
from api_requests import REQUESTS, error_codes
from authorization_cases import AUTHORIZATION_ERRORS, OPERATIONS, SPECIAL, Case, case, other_cases, texts
from broker_scene import CONTROLLER, batch

from moldau.broker.handlers import authorization as rules

USER: Final = "alice"
ROOT: Final = "root"
OTHER: Final = "bob"
CONSUMERS, SHARERS, EMPTY_SHARERS = "c", "s", "e"  # groups beside `g`, which has offsets only
NEW_TOPIC: Final = "new"
MEMBER: Final = "AAECAwQFBgcICQoLDA0ODw"
NAMES: Final = {
    ResourceKind.TOPIC: ("t", NEW_TOPIC),
    ResourceKind.GROUP: ("g", CONSUMERS, SHARERS, EMPTY_SHARERS),
    ResourceKind.CLUSTER: ("kafka-cluster",),
    ResourceKind.TRANSACTIONAL_ID: ("x",),
    ResourceKind.USER: (f"User:{OTHER}",),
    ResourceKind.DELEGATION_TOKEN: ("{token}",),
}
TESTED: Final = {
    **OPERATIONS,
    ResourceKind.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
    ResourceKind.DELEGATION_TOKEN: (Operation.DESCRIBE,),
}
VISIBLE: Final = {"t", NEW_TOPIC, "g", CONSUMERS, SHARERS, EMPTY_SHARERS, "x", OTHER}
WAIT_S: Final = 30.0
NO_ID: Final = bytes(16)
_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_USERS: Final = f'user_{USER}="{USER}" user_{ROOT}="{ROOT}"'
ALLOW, DENY = 3, 2
OF_ANY: Final[dict[str, Any]] = {
    "resource_type_filter": 1,
    "pattern_type_filter": 1,
    "operation": 1,
    "permission_type": 1,
}


def settings(ports: list[int]) -> dict[str, str]:
    """A node with a listener for its administrator, one for the user, and one for controllers, also for the user."""
    of_clients, of_user, of_controllers = ports
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "listeners": f"PLAINTEXT://localhost:{of_clients},SASL_PLAINTEXT://localhost:{of_user},"
        f"CONTROLLER://localhost:{of_controllers}",
        "advertised.listeners": f"PLAINTEXT://localhost:{of_clients},SASL_PLAINTEXT://localhost:{of_user}",
        "listener.security.protocol.map": "CONTROLLER:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": f"localhost:{of_controllers}",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{_MODULE} {_USERS};",
        "listener.name.controller.plain.sasl.jaas.config": f'{_MODULE} username="{ROOT}" password="{ROOT}" {_USERS};',
        "super.users": f"User:ANONYMOUS;User:{ROOT}",
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "delegation.token.secret.key": "a secret of all brokers",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
        "share.coordinator.state.topic.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
    }


# Scenarios ------------------------------------------------------------------------------------------------------------


class Acl(NamedTuple):
    """An ACL of the user."""

    kind: ResourceKind
    name: str
    operation: Operation
    permission: int = ALLOW


def on_all(kind: ResourceKind, operation: Operation, permission: int) -> Acl:
    return Acl(kind, "kafka-cluster" if kind is ResourceKind.CLUSTER else "*", operation, permission)


def scenarios() -> Iterator[tuple[str, list[Acl]]]:
    """No ACL; each single permission; everything but one."""
    everything = [on_all(kind, Operation.ALL, ALLOW) for kind in NAMES]
    yield "no ACL", []
    yield "everything", everything
    for kind, operations in TESTED.items():
        for operation in (Operation.ALL, *operations):
            allowed = [Acl(kind, name, operation) for name in NAMES[kind]]
            yield f"{operation.name} on {kind.name}", allowed
            yield f"all but {operation.name} on {kind.name}", [*everything, on_all(kind, operation, DENY)]


# Requests -------------------------------------------------------------------------------------------------------------


def creating_metadata() -> m.MetadataRequest:
    topic = m.MetadataRequest.MetadataRequestTopic(name=NEW_TOPIC)
    return m.MetadataRequest(topics=[topic], allow_auto_topic_creation=True)


def token_creation() -> m.CreateDelegationTokenRequest:
    return m.CreateDelegationTokenRequest(owner_principal_type="User", owner_principal_name=OTHER, max_lifetime_ms=1)


def transactional_batch() -> m.ProduceRequest:
    request: m.ProduceRequest = REQUESTS["Produce"]()
    request.transactional_id = "x"
    records = batch(b"a", is_transactional=True, producer_id=1 << 40, producer_epoch=0, base_sequence=0)
    request.topic_data[0].partition_data[0].records = records
    return request


def alteration_of_loggers() -> m.AlterConfigsRequest:
    resource = m.AlterConfigsRequest.AlterConfigsResource(resource_type=8, resource_name="1")
    return m.AlterConfigsRequest(resources=[resource])


def unused_acls() -> m.DeleteAclsRequest:
    chosen = m.DeleteAclsRequest.DeleteAclsFilter(**OF_ANY, principal_filter="User:unused")
    return m.DeleteAclsRequest(filters=[chosen])


def controller_without_features() -> m.ControllerRegistrationRequest:
    return m.ControllerRegistrationRequest(controller_id=9)


def expected_feature() -> m.UpdateFeaturesRequest:
    update = m.UpdateFeaturesRequest.FeatureUpdateKey(feature="metadata.version", max_version_level=1)
    return m.UpdateFeaturesRequest(feature_updates=[update], validate_only=True)


def missing_snapshot() -> m.FetchSnapshotRequest:
    """Apache Kafka's node ends on a request without topics."""
    partition = m.FetchSnapshotRequest.PartitionSnapshot(
        current_leader_epoch=-1, snapshot_id=m.FetchSnapshotRequest.SnapshotId(end_offset=1 << 40, epoch=1)
    )
    topic = m.FetchSnapshotRequest.TopicSnapshot(name="__cluster_metadata", partitions=[partition])
    return m.FetchSnapshotRequest(topics=[topic])


# Requests that change little where they are allowed, and that Apache Kafka responds to.
HARMLESS: Final[dict[str, Callable[[], Any]]] = {
    "DeleteAcls": unused_acls,
    "UpdateFeatures": expected_feature,
    "ControllerRegistration": controller_without_features,
    "DescribeUserScramCredentials": lambda: m.DescribeUserScramCredentialsRequest(users=[]),
    "FetchSnapshot": missing_snapshot,
}
BY_ID: Final = "by id"
OF_IDS: Final = {
    "Produce": 13,
    "Fetch": 17,
    "Metadata": 12,
    "DeleteTopics": 6,
    "OffsetCommit": 10,
    "OffsetFetch": 10,
}
MORE: Final = [
    case("Produce", 12, "a transactional batch", request=transactional_batch),
    case("AlterConfigs", 2, "for loggers", request=alteration_of_loggers),
    case("SyncGroup", 5, "without a protocol", request=lambda: m.SyncGroupRequest(group_id="g", member_id="m")),
]
READERS: Final = ("ConsumerGroupDescribe", "Describe", "Fetch", "List", "ShareGroupDescribe")
TOKENS: Final = [
    case("CreateDelegationToken", 3, rules.FOR_OTHERS, request=token_creation),
    case("RenewDelegationToken", 2, request=lambda: m.RenewDelegationTokenRequest(hmac=b"none")),
    case("ExpireDelegationToken", 2, request=lambda: m.ExpireDelegationTokenRequest(hmac=b"none")),
    case(
        "DescribeDelegationToken",
        3,
        rules.FOR_OTHERS,
        request=lambda: m.DescribeDelegationTokenRequest(owners=None),
    ),
]
FREE: Final = [
    case("ApiVersions", 4, request=lambda: m.ApiVersionsRequest(client_software_name="a", client_software_version="1")),
    case("GetTelemetrySubscriptions", 0, request=m.GetTelemetrySubscriptionsRequest),
    case("PushTelemetry", 0, request=lambda: m.PushTelemetryRequest(subscription_id=1)),
]


def cases() -> list[Case]:
    """Every API in every form that has rules; requests that only read come first, and what ends groups last."""
    by_id = [case(api, version, BY_ID) for api, version in OF_IDS.items()]
    found = [*SPECIAL, *by_id, *MORE, *other_cases(), *TOKENS, *FREE]
    return sorted(found, key=lambda each: (_harm(each.api), str(each)))


def _harm(api: str) -> int:
    if api.startswith(READERS):
        return 0
    return 2 if api in ("DeleteGroups", "DeleteTopics") else 1


def build(tested: Case, topic_id: bytes) -> Any:
    request = HARMLESS.get(tested.api, tested.request)()
    if rules.CREATING in tested.when:
        request = creating_metadata()
    if tested.when & {BY_ID, rules.OF_FOLLOWER} or "Share" in tested.api:
        use_id(request, topic_id)
    if hasattr(request, "timeout_ms"):
        request.timeout_ms = 10_000
    if "validate_only" in request.__slots__:
        request.validate_only = True
    if "Group" in tested.api or "Share" in tested.api:
        replace_text(request, {"g": group_of(tested.api), "m": MEMBER})
    return request


def group_of(api: str) -> str:
    if api in ("AlterShareGroupOffsets", "DeleteShareGroupOffsets"):
        return EMPTY_SHARERS
    if "Share" in api:
        return SHARERS
    return CONSUMERS if api.startswith("ConsumerGroup") else "g"


def use_id(message: Any, topic_id: bytes) -> None:
    """Name the topic `t` by its id."""
    for each in parts(message):
        if "topic_id" in each.__slots__:
            each.topic_id = topic_id
            for name in ("name", "topic"):
                if name in each.__slots__:
                    setattr(each, name, "" if isinstance(getattr(type(each)(), name), str) else None)
    if isinstance(message, m.DeleteTopicsRequest):
        message.topics = [m.DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=topic_id)]


def replace_text(message: Any, replacements: dict[str, str]) -> None:
    for each in parts(message):
        for name in each.__slots__:
            value = getattr(each, name)
            if isinstance(value, str) and value in replacements:
                setattr(each, name, replacements[value])
            elif isinstance(value, list) and value and isinstance(value[0], str):
                setattr(each, name, [replacements.get(text, text) for text in value])


def parts(message: Any) -> Iterator[Any]:
    """A message and all structures in it."""
    yield message
    for name in message.__slots__:
        value = getattr(message, name)
        for each in value if isinstance(value, list | tuple) else [value]:
            if hasattr(each, "__slots__") and not isinstance(each, str | bytes | memoryview):
                yield from parts(each)


# Brokers --------------------------------------------------------------------------------------------------------------


class BrokerUnderAcls:
    """A broker, or Apache Kafka, with connections of its administrator and of the user."""

    def __init__(self, ports: list[int]) -> None:
        self._of_clients, self._of_user, self._of_controllers = [f"localhost:{port}" for port in ports]
        self._admin = BrokerConnection(self._of_clients)
        self._of_controller = log_in(self._of_controllers, ROOT)
        self._users: dict[str, BrokerConnection] = {}
        self._prepare_coordinators()
        self._token = self._create_token()

    def close(self) -> None:
        for connection in (self._admin, self._of_controller, *self._users.values()):
            connection.close()

    def choose(self, acls: Iterable[Acl]) -> None:
        """Replace the ACLs of the user, and wait until broker and controller apply them."""
        chosen = m.DeleteAclsRequest.DeleteAclsFilter(**OF_ANY, principal_filter=f"User:{USER}")
        assert not error_codes(self._ask(3, m.DeleteAclsRequest(filters=[chosen])))[0]
        creations = [
            m.CreateAclsRequest.AclCreation(
                resource_type=int(each.kind),
                resource_name=each.name.replace("{token}", self._token),
                principal=f"User:{USER}",
                host="*",
                operation=int(each.operation),
                permission_type=each.permission,
            )
            for each in acls
        ]
        if creations:
            assert not any(error_codes(self._ask(3, m.CreateAclsRequest(creations=creations))))
        for connection in (self._admin, self._of_controller):
            self._wait_for_acls(connection, len(creations))

    def _wait_for_acls(self, connection: BrokerConnection, count: int) -> None:
        everything = m.DescribeAclsRequest(**OF_ANY, principal_filter=f"User:{USER}")
        wait_until(lambda: sum(len(each.acls) for each in connection.ask(3, everything).resources) == count)

    def prepare(self) -> None:
        """The topic, groups with members and offsets, and an open transaction; no new topic."""
        self._create_topic("t")
        wait_until(self._has_open_transaction)
        wait_until(self._has_members)
        wait_until(lambda: not any(error_codes(self._ask(9, REQUESTS["OffsetCommit"]()))))
        self._delete_new_topic()

    def _has_members(self) -> bool:
        """A member joins until it has the topic, whose id may be another one than before."""
        self._join(CONSUMERS, m.ConsumerGroupHeartbeatRequest, rebalance_timeout_ms=1000, topic_partitions=[])
        self._join(SHARERS, m.ShareGroupHeartbeatRequest)
        return self._is_assigned(m.ConsumerGroupDescribeRequest(group_ids=[CONSUMERS])) and self._is_assigned(
            m.ShareGroupDescribeRequest(group_ids=[SHARERS])
        )

    def response(self, tested: Case) -> Any:
        request = build(tested, self._topic_id)
        connection = self._user(self._of_controllers if tested.address == CONTROLLER else self._of_user)
        response = connection.ask(tested.version, request)
        if response is CLOSED:
            self._forget(connection)
        if tested.api == "DeleteTopics":
            self._create_topic("t")
        if rules.CREATING in tested.when and not denials(response):
            wait_until(lambda: self._has(NEW_TOPIC))  # Apache Kafka creates it after the response
            self._delete_new_topic()
        return response

    def _ask(self, version: int, request: Any) -> Any:
        return self._admin.ask(version, request)

    def _user(self, address: str) -> BrokerConnection:
        if address not in self._users:
            self._users[address] = log_in(address, USER)
        return self._users[address]

    def _forget(self, connection: BrokerConnection) -> None:
        connection.close()
        self._users = {address: each for address, each in self._users.items() if each is not connection}

    def _prepare_coordinators(self) -> None:
        self._create_topic("t")
        for key_type, key in ((0, "g"), (1, "x"), (2, f"{SHARERS}:{MEMBER}:0")):
            self._wait_for_coordinator(m.FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key]))
        self._join(EMPTY_SHARERS, m.ShareGroupHeartbeatRequest)
        self._leave(EMPTY_SHARERS)

    def _wait_for_coordinator(self, search: m.FindCoordinatorRequest) -> None:
        wait_until(lambda: not any(error_codes(self._ask(6, search))))

    def _create_topic(self, name: str) -> None:
        topic = m.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        self._ask(7, m.CreateTopicsRequest(timeout_ms=10_000, topics=[topic]))
        wait_until(lambda: self._has(name))

    def _has(self, name: str) -> bool:
        asked = m.MetadataRequest.MetadataRequestTopic(name=name)
        topic = self._ask(12, m.MetadataRequest(topics=[asked], allow_auto_topic_creation=False)).topics[0]
        if name == "t":
            self._topic_id = topic.topic_id
        return not topic.error_code and not any(each.error_code for each in topic.partitions)

    def _delete_new_topic(self) -> None:
        if self._has(NEW_TOPIC):
            self._ask(5, m.DeleteTopicsRequest(topic_names=[NEW_TOPIC], timeout_ms=10_000))
            wait_until(lambda: not self._has(NEW_TOPIC))

    def _has_open_transaction(self) -> bool:
        producer = self._ask(4, m.InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=900_000))
        addition: m.AddPartitionsToTxnRequest = REQUESTS["AddPartitionsToTxn"]()
        addition.v3_and_below_producer_id = producer.producer_id
        addition.v3_and_below_producer_epoch = producer.producer_epoch
        return not producer.error_code and not any(error_codes(self._ask(3, addition)))

    def _join(self, group: str, message: Any, **fields: Any) -> None:
        request = message(group_id=group, member_id=MEMBER, subscribed_topic_names=["t"], **fields)
        wait_until(lambda: not self._ask(1, request).error_code)

    def _is_assigned(self, description: Any) -> bool:
        """Whether the members of a group have the topic, which was perhaps created again."""
        group = self._ask(1, description).groups[0]
        assigned = [topic.topic_id for member in group.members for topic in member.assignment.topic_partitions]
        return not group.error_code and assigned == [self._topic_id]

    def _leave(self, group: str) -> None:
        self._ask(1, m.ShareGroupHeartbeatRequest(group_id=group, member_id=MEMBER, member_epoch=-1))

    def _create_token(self) -> str:
        """A token of another user; only authenticated users create tokens."""
        connection = log_in(self._of_user, ROOT)
        request = m.CreateDelegationTokenRequest(
            owner_principal_type="User", owner_principal_name=OTHER, max_lifetime_ms=-1
        )
        response = connection.ask(3, request)
        connection.close()
        assert not response.error_code, response
        token_id: str = response.token_id
        return token_id


def log_in(address: str, user: str) -> BrokerConnection:
    connection = BrokerConnection(address)
    assert not connection.ask(1, m.SaslHandshakeRequest(mechanism="PLAIN")).error_code
    response = connection.ask(2, m.SaslAuthenticateRequest(auth_bytes=f"\0{user}\0{user}".encode()))
    assert not response.error_code, response
    return connection


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)  # another process changes the condition


# Responses ------------------------------------------------------------------------------------------------------------


def denials(response: Any) -> set[int]:
    return set() if response is CLOSED else set(error_codes(response)) & AUTHORIZATION_ERRORS


def visible(response: Any) -> set[str]:
    """The names in a response."""
    return set() if response is CLOSED else texts(response) & VISIBLE


def comparable(response: Any, without: Iterable[str]) -> Any:
    """Ignore the order of lists, and whether a list without elements is empty or null."""
    if isinstance(response, dict):
        return {name: comparable(each, without) for name, each in response.items()}
    if isinstance(response, list):
        return sorted((comparable(each, without) for each in response), key=repr)
    if hasattr(response, "__slots__") and not isinstance(response, str | bytes):
        return comparable(plain(response, without), without)
    return [] if response is None else response
