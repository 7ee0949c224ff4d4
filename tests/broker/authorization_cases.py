"""Every API in the forms that the table of rules has rules for, to be sent under chosen ACLs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from api_requests import REQUESTS
from broker_scene import BROKER, CONTROLLER

from moldau.broker.access import CLUSTER_OPERATIONS, GROUP_OPERATIONS, TOPIC_OPERATIONS, Operation, ResourceKind
from moldau.broker.handlers import authorization as rules
from moldau.broker.handlers.authorization import RULES, Rule
from moldau.broker.handlers.table import served_apis
from moldau.broker.requests.router import ServedOn
from moldau.model.errors import ErrorCode
from moldau.model.ids import Address
from moldau.wire import messages as m
from moldau.wire.message_classes import Message

AUTHORIZATION_ERRORS = {int(code) for code in ErrorCode if code.name.endswith("AUTHORIZATION_FAILED")}
NAMES = {
    ResourceKind.TOPIC: "t",
    ResourceKind.GROUP: "g",
    ResourceKind.CLUSTER: "kafka-cluster",
    ResourceKind.TRANSACTIONAL_ID: "x",
}
OPERATIONS = {
    ResourceKind.TOPIC: TOPIC_OPERATIONS,
    ResourceKind.GROUP: GROUP_OPERATIONS,
    ResourceKind.CLUSTER: (*CLUSTER_OPERATIONS, Operation.DELETE),
    ResourceKind.TRANSACTIONAL_ID: (Operation.DESCRIBE, Operation.WRITE, Operation.TWO_PHASE_COMMIT),
}
MANY_CONFIGS = {2: "t", 4: "1", 8: "1", 16: "m", 32: "g"}


@dataclass(frozen=True)
class Case:
    """A request in a form that some of the rules are for."""

    api: str
    version: int
    request: Callable[[], Any]
    when: frozenset[str] = frozenset()
    address: Address = BROKER

    @property
    def rules(self) -> list[Rule]:
        return [rule for rule in RULES[self.api] if not rule.when or rule.when in self.when]

    def __str__(self) -> str:
        return "-".join([self.api, str(self.version), *sorted(self.when)]).replace(" ", "_")


def case(api: str, version: int, *when: str, address: Address = BROKER, request: Any = None) -> Case:
    return Case(api, version, request or REQUESTS[api], frozenset(when), address)


def configs(message: Any, resource: Any, *, loggers: bool = True) -> Iterator[tuple[str, Callable[[], Any]]]:
    of_broker = (4, 8, 16) if loggers else (4, 16)
    for when, kind in ((rules.OF_TOPIC, 2), *((rules.OF_BROKER, each) for each in of_broker), (rules.OF_GROUP, 32)):
        named = resource(resource_type=kind, resource_name=MANY_CONFIGS[kind])
        yield when, lambda named=named: message(resources=[named])  # type: ignore[misc]


def transactional_produce() -> m.ProduceRequest:
    request: m.ProduceRequest = REQUESTS["Produce"]()
    request.transactional_id = "x"
    return request


def follower_fetch() -> m.FetchRequest:
    request: m.FetchRequest = REQUESTS["Fetch"]()
    request.replica_state = m.FetchRequest.ReplicaState(replica_id=5)
    return request


def creating_metadata() -> m.MetadataRequest:
    return m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(name="t")], allow_auto_topic_creation=True)


def fetch_of_all_offsets() -> m.OffsetFetchRequest:
    return m.OffsetFetchRequest(groups=[m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=None)])


def all_share_offsets() -> m.DescribeShareGroupOffsetsRequest:
    request = m.DescribeShareGroupOffsetsRequest
    return request(groups=[request.DescribeShareGroupOffsetsRequestGroup(group_id="g", topics=None)])


SPECIAL = [
    case("Produce", 12),
    case("Produce", 12, rules.TRANSACTIONAL, request=transactional_produce),
    case("Fetch", 12, rules.OF_CONSUMER),
    case("Fetch", 17, rules.OF_FOLLOWER, request=follower_fetch),
    case("Fetch", 17, rules.ON_CONTROLLER, address=CONTROLLER),
    case("Metadata", 13, rules.NAMED),
    case("Metadata", 13, rules.ALL_TOPICS, request=lambda: m.MetadataRequest(topics=None)),
    case("Metadata", 13, rules.CREATING, request=creating_metadata),
    case("DescribeTopicPartitions", 0, rules.NAMED),
    case(
        "DescribeTopicPartitions",
        0,
        rules.ALL_TOPICS,
        request=lambda: m.DescribeTopicPartitionsRequest(topics=[], response_partition_limit=1000),
    ),
    case("DeleteTopics", 5, rules.BY_NAME),
    *(
        case("DescribeConfigs", 4, when, request=request)
        for when, request in configs(m.DescribeConfigsRequest, m.DescribeConfigsRequest.DescribeConfigsResource)
    ),
    *(
        case("AlterConfigs", 2, rules.OF_METRICS if when == rules.OF_BROKER else when, request=request)
        for when, request in configs(m.AlterConfigsRequest, m.AlterConfigsRequest.AlterConfigsResource, loggers=False)
    ),
    *(
        case("IncrementalAlterConfigs", 1, when, request=request)
        for when, request in configs(
            m.IncrementalAlterConfigsRequest, m.IncrementalAlterConfigsRequest.AlterConfigsResource
        )
    ),
    case("FindCoordinator", 6, rules.OF_GROUP),
    case(
        "FindCoordinator",
        6,
        rules.OF_TRANSACTION,
        request=lambda: m.FindCoordinatorRequest(key_type=1, coordinator_keys=["x"]),
    ),
    case(
        "FindCoordinator",
        6,
        rules.OF_SHARE_PARTITION,
        request=lambda: m.FindCoordinatorRequest(key_type=2, coordinator_keys=["g:AAECAwQFBgcICQoLDA0ODw:0"]),
    ),
    case("DescribeShareGroupOffsets", 1, rules.NAMED),
    case("DescribeShareGroupOffsets", 1, rules.ALL_TOPICS, request=all_share_offsets),
    case("OffsetCommit", 9),
    case("OffsetFetch", 7, rules.NAMED),
    case("OffsetFetch", 9, rules.ALL_TOPICS, request=fetch_of_all_offsets),
    case("InitProducerId", 5, rules.IDEMPOTENT),
    case("InitProducerId", 5, rules.TRANSACTIONAL, request=lambda: m.InitProducerIdRequest(transactional_id="x")),
    case("AddPartitionsToTxn", 3, rules.FROM_CLIENT),
    case("AddPartitionsToTxn", 5, rules.FROM_BROKER),
    case("DescribeCluster", 2),
    case(
        "DescribeCluster",
        2,
        rules.ON_CONTROLLER,
        address=CONTROLLER,
        request=lambda: m.DescribeClusterRequest(endpoint_type=2),
    ),
]


# Their rules need authenticated clients: see test_delegation_tokens.
OF_TOKENS = frozenset(f"{each}DelegationToken" for each in ("Create", "Renew", "Expire", "Describe"))
OF_SHARE_MEMBERS = ("ShareFetch", "ShareAcknowledge")


def other_cases() -> Iterator[Case]:
    special = {each.api for each in SPECIAL} | OF_TOKENS
    for api in served_apis():
        if api.name not in special and RULES[api.name]:
            for kind, address in ((ServedOn.BROKER, BROKER), (ServedOn.CONTROLLER, CONTROLLER)):
                if kind in api.served_on:
                    yield case(api.name, api.newest, address=address)


def texts(response: Any) -> set[str]:
    """All strings in a response."""
    if isinstance(response, str):
        return {response}
    if isinstance(response, list | tuple):
        return {text for each in response for text in texts(each)}
    if isinstance(response, Message):
        return {text for name in response.__slots__ for text in texts(getattr(response, name))}
    return set()
