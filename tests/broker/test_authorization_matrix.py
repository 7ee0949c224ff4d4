"""Every API against every ACL that could matter: the handlers follow the table of rules."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from api_requests import REQUESTS, error_codes
from authorization_cases import (
    AUTHORIZATION_ERRORS,
    NAMES,
    OF_SHARE_MEMBERS,
    OF_TOKENS,
    OPERATIONS,
    SPECIAL,
    Case,
    other_cases,
    texts,
)
from broker_scene import WITH_CONTROLLER, Scene, Talker, on_broker

from moldau.broker.access import (
    ANONYMOUS,
    Operation,
    ResourceKind,
)
from moldau.broker.authorizer import StandardAuthorizer
from moldau.broker.handlers import authorization as rules
from moldau.broker.handlers.authorization import RULES, Effect, Permission
from moldau.broker.handlers.table import served_apis
from moldau.machines.access.acls import AclBinding, PatternType
from moldau.machines.access.acls import Permission as Access
from moldau.machines.metadata.image import MetadataImage
from moldau.model.ids import NO_TOPIC_ID
from moldau.wire import messages as m

pytestmark = pytest.mark.proves("O4", part="access control lists")

IMPLIED_BY = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}


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


def choices(tested: Case) -> Iterator[list[AclBinding]]:
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
