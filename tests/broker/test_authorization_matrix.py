"""Every API against every ACL that could matter: the handlers follow the table of rules."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from api_requests import REQUESTS, error_codes
from broker_scene import BROKER, CONTROLLER, WITH_CONTROLLER, Scene, Talker, on_broker

from moldau.broker.access import (
    ANONYMOUS,
    CLUSTER_OPERATIONS,
    GROUP_OPERATIONS,
    TOPIC_OPERATIONS,
    Operation,
    ResourceKind,
)
from moldau.broker.authorizer import StandardAuthorizer
from moldau.broker.handlers import authorization as rules
from moldau.broker.handlers.authorization import RULES, Effect, Permission, Rule
from moldau.broker.handlers.table import served_apis
from moldau.broker.requests.router import ServedOn
from moldau.machines.access.acls import AclBinding, PatternType
from moldau.machines.access.acls import Permission as Access
from moldau.machines.metadata.image import MetadataImage
from moldau.model.errors import ErrorCode
from moldau.model.ids import NO_TOPIC_ID, Address
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
IMPLIED_BY = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}
MANY_CONFIGS = {2: "t", 4: "1", 8: "1", 16: "m", 32: "g"}


class ChosenAcls(StandardAuthorizer):
    """Decides by the ACLs that the test has chosen, whatever is in the metadata."""

    def __init__(self) -> None:
        super().__init__(frozenset(), allows_without_acl=False)
        self.choose(ALL_ALLOWED)

    def choose(self, acls: Sequence[AclBinding]) -> None:
        image = MetadataImage(acls={str(number).encode(): acl for number, acl in enumerate(acls)})
        super().follow(MetadataImage(), is_caught_up=True)
        super().follow(image, is_caught_up=True)

    def follow(self, image: MetadataImage, *, is_caught_up: bool) -> None:
        """Ignore the metadata."""


def acl(permission: Permission, access: Access = Access.ALLOW, *, everywhere: bool = False) -> AclBinding:
    operation, kind = permission
    name = "*" if everywhere and kind is not ResourceKind.CLUSTER else NAMES[kind]
    return AclBinding(kind, name, PatternType.LITERAL, ANONYMOUS, "*", operation, access)


ALL_ALLOWED = [acl(Permission(Operation.ALL, kind), everywhere=True) for kind in NAMES]


def choices(tested: "Case") -> Iterator[list[AclBinding]]:
    """No ACL; each single permission; everything but one. Resources of kinds without a rule matter as a whole only."""
    yield []
    kinds = {permission.kind for rule in tested.rules for permission in rule.any_of}
    permissions = [Permission(Operation.ALL, kind) for kind in NAMES]
    permissions += [Permission(operation, kind) for kind in kinds for operation in OPERATIONS[kind]]
    for permission in permissions:
        yield [acl(permission)]
        yield [*ALL_ALLOWED, acl(permission, Access.DENY, everywhere=True)]


def is_allowed(acls: Sequence[AclBinding], wanted: Permission) -> bool:
    """Kafka's rules, for ACLs that all match the resource."""
    operation, kind = wanted
    of_kind = [each for each in acls if each.kind == kind]
    denied = {each.operation for each in of_kind if each.permission == Access.DENY}
    allowed = {each.operation for each in of_kind if each.permission == Access.ALLOW}
    if denied & {operation, Operation.ALL}:
        return False
    return bool(allowed & {operation, Operation.ALL, *IMPLIED_BY.get(operation, ())})


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


def configs(message: Any, resource: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    for when, kind in ((rules.OF_TOPIC, 2), *((rules.OF_BROKER, each) for each in (4, 8, 16)), (rules.OF_GROUP, 32)):
        named = resource(resource_type=kind, resource_name=MANY_CONFIGS[kind])
        yield when, lambda named=named: message(resources=[named])  # type: ignore[misc]


def transactional_produce() -> m.ProduceRequest:
    request: m.ProduceRequest = REQUESTS["Produce"]()
    request.transactional_id = "x"
    return request


def follower_fetch() -> m.FetchRequest:
    request: m.FetchRequest = REQUESTS["Fetch"]()
    request.replica_id = 5
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
    case("Fetch", 12, rules.OF_NODE, request=follower_fetch),
    case("Fetch", 17, rules.OF_NODE, address=CONTROLLER),
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
        case("AlterConfigs", 2, when, request=request)
        for when, request in configs(m.AlterConfigsRequest, m.AlterConfigsRequest.AlterConfigsResource)
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


async def prepare(talker: Talker, *, is_share_group: bool, is_empty: bool) -> None:
    """A topic, a group with a member and offsets (or a share group), and an open transaction."""
    codes = error_codes(await talker.ask(7, REQUESTS["CreateTopics"]()))
    for key_type, key in ((0, "g"), (1, "x")):
        search = m.FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
        while any(error_codes(await talker.ask(6, search))):  # its topic is being created
            await asyncio.sleep(0.1)
    if is_share_group:
        joined = await talker.ask(1, REQUESTS["ShareGroupHeartbeat"]())
        await asyncio.sleep(1)  # until the states of its partitions are initialized
        left = m.ShareGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=-1)
        if is_empty:
            codes += error_codes(await talker.ask(1, left))
    else:
        codes += error_codes(await talker.ask(9, REQUESTS["OffsetCommit"]()))
        joined = await talker.ask(1, REQUESTS["ConsumerGroupHeartbeat"]())
    producer = await talker.ask(5, m.InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=900_000))
    addition: m.AddPartitionsToTxnRequest = REQUESTS["AddPartitionsToTxn"]()
    addition.v3_and_below_producer_id = producer.producer_id
    addition.v3_and_below_producer_epoch = producer.producer_epoch
    codes += error_codes(await talker.ask(3, addition))
    assert not any([*codes, joined.error_code, producer.error_code]), (codes, joined, producer)


async def open_session(scene: Scene, talker: Talker, request: Any) -> None:
    """Open a share session without partitions, and make the request its next one."""
    opening = m.ShareFetchRequest(group_id=request.group_id, member_id=request.member_id)
    assert (await talker.ask(2, opening)).error_code == 0
    request.share_session_epoch = 1
    topic = scene.node.broker.image.topics.get("t")
    request.topics[0].topic_id = NO_TOPIC_ID if topic is None else topic.topic_id


def texts(response: Any) -> set[str]:
    """All strings in a response."""
    if isinstance(response, str):
        return {response}
    if isinstance(response, list | tuple):
        return {text for each in response for text in texts(each)}
    if isinstance(response, Message):
        return {text for name in response.__slots__ for text in texts(getattr(response, name))}
    return set()


def check(tested: Case, acls: Sequence[AclBinding], response: Any) -> None:
    unmet = [rule for rule in tested.rules if not any(is_allowed(acls, each) for each in rule.any_of)]
    codes = set(error_codes(response)) & AUTHORIZATION_ERRORS
    first = unmet[0] if unmet else None
    expected = {int(first.error)} if first is not None and first.effect is not Effect.LEAVE_OUT else set()
    assert codes == expected, (acls, response)
    if expected:
        return
    for rule in tested.rules:
        if rule.effect is Effect.LEAVE_OUT:
            name = NAMES[rule.any_of[-1].kind]
            assert (name in texts(response)) == (rule not in unmet), (acls, response)


@pytest.mark.parametrize("tested", [*SPECIAL, *other_cases()], ids=str)
def test_handler_follows_the_rules(tested: Case) -> None:
    authorizer = ChosenAcls()

    async def script(scene: Scene) -> None:
        admin = await scene.connect()
        await prepare(admin, is_share_group="ShareGroup" in tested.api, is_empty="Offsets" in tested.api)
        for acls in choices(tested):
            if rules.CREATING in tested.when:
                await admin.ask(5, REQUESTS["DeleteTopics"]())
            talker = await scene.connect(tested.address)
            request = tested.request()
            if tested.api in OF_SHARE_MEMBERS:
                await open_session(scene, talker, request)
            authorizer.choose(acls)
            check(tested, acls, await talker.ask(tested.version, request))
            talker.connection.close()
            authorizer.choose(ALL_ALLOWED)

    on_broker(script, authorizer=authorizer, settings=WITH_CONTROLLER)


def test_every_served_api_has_rules() -> None:
    assert {api.name for api in served_apis()} <= RULES.keys()


def test_every_condition_of_a_rule_is_tested() -> None:
    served = {api.name for api in served_apis()} - OF_TOKENS
    conditions = {(name, rule.when) for name, each in RULES.items() for rule in each if rule.when and name in served}
    assert conditions == {(each.api, when) for each in SPECIAL for when in each.when if (each.api, when) in conditions}
