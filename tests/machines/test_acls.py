"""ACLs: filters, and the index compared with Kafka's rules written down one ACL at a time."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.machines.access.acls import (
    WILDCARD,
    WILDCARD_PRINCIPAL,
    AclBinding,
    AclFilter,
    AclIndex,
    Client,
    Operation,
    PatternType,
    Permission,
    ResourceKind,
    Verdict,
    canonical_host,
)

pytestmark = pytest.mark.proves("O4", part="access control lists")

ALICE, BOB = "User:alice", "User:bob"
HOST, OTHER_HOST = "10.0.0.1", "10.0.0.2"
IMPLIES_DESCRIBE = {Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
IMPLIES_DESCRIBE_CONFIGS = {Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS}

OPERATIONS = [each for each in Operation if each >= Operation.ALL]
NAMES = ["a", "ab", "abc", "b", "ba", "orders"]
bindings = st.builds(
    AclBinding,
    kind=st.sampled_from([ResourceKind.TOPIC, ResourceKind.GROUP]),
    name=st.sampled_from([*NAMES, WILDCARD]),
    pattern=st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    principal=st.sampled_from([ALICE, BOB, WILDCARD_PRINCIPAL]),
    host=st.sampled_from([HOST, OTHER_HOST, WILDCARD]),
    operation=st.sampled_from(OPERATIONS),
    permission=st.sampled_from([Permission.ALLOW, Permission.ALLOW, Permission.DENY]),
)


def acl(
    name: str = "orders",
    operation: Operation = Operation.READ,
    permission: Permission = Permission.ALLOW,
    *,
    principal: str = ALICE,
    host: str = WILDCARD,
    pattern: PatternType = PatternType.LITERAL,
    kind: ResourceKind = ResourceKind.TOPIC,
) -> AclBinding:
    return AclBinding(kind, name, pattern, principal, host, operation, permission)


def concerns_resource(each: AclBinding, kind: ResourceKind, name: str) -> bool:
    if each.kind != kind:
        return False
    if each.pattern == PatternType.PREFIXED:
        return name.startswith(each.name)
    return each.name in (name, WILDCARD)


def concerns_request(each: AclBinding, client: Client, operation: Operation) -> bool:
    if each.principal not in (client.principal, WILDCARD_PRINCIPAL) or each.host not in (client.host, WILDCARD):
        return False
    if each.operation == Operation.ALL or each.operation == operation:
        return True
    if each.permission == Permission.DENY:
        return False
    if operation == Operation.DESCRIBE:
        return each.operation in IMPLIES_DESCRIBE
    return operation == Operation.DESCRIBE_CONFIGS and each.operation in IMPLIES_DESCRIBE_CONFIGS


def naive_verdict(
    acls: Sequence[AclBinding], client: Client, operation: Operation, kind: ResourceKind, name: str
) -> Verdict:
    of_resource = [each for each in acls if concerns_resource(each, kind, name)]
    permissions = {each.permission for each in of_resource if concerns_request(each, client, operation)}
    if Permission.DENY in permissions:
        return Verdict.DENIED
    if Permission.ALLOW in permissions:
        return Verdict.ALLOWED
    return Verdict.DENIED if of_resource else Verdict.NO_ACL


def naive_allows_any(acls: Sequence[AclBinding], client: Client, operation: Operation, kind: ResourceKind) -> bool:
    relevant = [
        each
        for each in acls
        if each.kind == kind
        and each.principal in (client.principal, WILDCARD_PRINCIPAL)
        and each.host in (client.host, WILDCARD)
        and each.operation in (operation, Operation.ALL)
    ]
    denied = {(each.pattern, each.name) for each in relevant if each.permission == Permission.DENY}
    allowed = {(each.pattern, each.name) for each in relevant if each.permission == Permission.ALLOW}
    if (PatternType.LITERAL, WILDCARD) in denied:
        return False
    if (PatternType.LITERAL, WILDCARD) in allowed:
        return True
    return any(
        not (pattern == PatternType.LITERAL and (pattern, name) in denied)
        and not any(each_pattern == PatternType.PREFIXED and name.startswith(each) for each_pattern, each in denied)
        for pattern, name in allowed
    )


@settings(max_examples=400, deadline=None)
@given(
    st.lists(bindings, max_size=14),
    st.lists(bindings, max_size=5),
    st.sampled_from([ALICE, BOB]),
    st.sampled_from([HOST, OTHER_HOST]),
)
def test_index_decides_like_kafkas_rules(
    acls: list[AclBinding], removed: list[AclBinding], principal: str, host: str
) -> None:
    client = Client(principal, host)
    index = AclIndex([*acls, *removed])
    for each in removed:
        index.remove(each)
    for kind in (ResourceKind.TOPIC, ResourceKind.GROUP, ResourceKind.CLUSTER):
        for operation in OPERATIONS:
            assert index.allows_any(client, operation, kind) == naive_allows_any(acls, client, operation, kind)
            for name in (*NAMES, "abcd", "x"):
                expected = naive_verdict(acls, client, operation, kind, name)
                assert index.decide(client, operation, kind, name) == expected, (operation, name)


def test_index_without_acls_states_so() -> None:
    index = AclIndex()
    assert index.decide(Client(ALICE, HOST), Operation.READ, ResourceKind.TOPIC, "orders") == Verdict.NO_ACL
    index.add(acl())
    index.remove(acl())
    assert index.decide(Client(ALICE, HOST), Operation.READ, ResourceKind.TOPIC, "orders") == Verdict.NO_ACL


@pytest.mark.parametrize(
    ("granted", "implied"),
    [
        (Operation.READ, Operation.DESCRIBE),
        (Operation.WRITE, Operation.DESCRIBE),
        (Operation.DELETE, Operation.DESCRIBE),
        (Operation.ALTER, Operation.DESCRIBE),
        (Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS),
    ],
)
def test_allow_implies_the_description_and_deny_does_not(granted: Operation, implied: Operation) -> None:
    client = Client(ALICE, HOST)
    index = AclIndex([acl(operation=granted)])
    assert index.decide(client, implied, ResourceKind.TOPIC, "orders") == Verdict.ALLOWED
    index = AclIndex([acl(operation=granted, permission=Permission.DENY), acl(operation=implied)])
    assert index.decide(client, implied, ResourceKind.TOPIC, "orders") == Verdict.ALLOWED
    assert index.decide(client, granted, ResourceKind.TOPIC, "orders") == Verdict.DENIED


@pytest.mark.parametrize(
    ("written", "connected"),
    [("::1", "0:0:0:0:0:0:0:1"), ("0:0:0:0:0:0:0:1", "::1"), ("10.0.0.1", "::ffff:10.0.0.1"), ("FE80::1", "fe80::1")],
)
def test_acl_for_a_host_matches_the_address_in_any_form(written: str, connected: str) -> None:
    index = AclIndex([acl(host=written)])
    client = Client(ALICE, canonical_host(connected))
    assert index.decide(client, Operation.READ, ResourceKind.TOPIC, "orders") == Verdict.ALLOWED


FILTERED = [
    acl("ab"),
    acl("ab", pattern=PatternType.PREFIXED),
    acl("a", pattern=PatternType.PREFIXED, principal=BOB),
    acl(WILDCARD, Operation.WRITE, Permission.DENY),
    acl("g", kind=ResourceKind.GROUP, host=HOST),
]


@pytest.mark.parametrize(
    ("selected", "found"),
    [
        (AclFilter(), [0, 1, 2, 3, 4]),
        (AclFilter(kind=ResourceKind.GROUP), [4]),
        (AclFilter(name="ab"), [0, 1]),
        (AclFilter(name="ab", pattern=PatternType.LITERAL), [0]),
        (AclFilter(name="ab", pattern=PatternType.PREFIXED), [1]),
        (AclFilter(name="ab", pattern=PatternType.MATCH), [0, 1, 2, 3]),
        (AclFilter(name="abc", pattern=PatternType.MATCH), [1, 2, 3]),
        (AclFilter(pattern=PatternType.PREFIXED), [1, 2]),
        (AclFilter(pattern=PatternType.MATCH), [0, 1, 2, 3, 4]),
        (AclFilter(principal=BOB), [2]),
        (AclFilter(host=HOST), [4]),
        (AclFilter(host=WILDCARD), [0, 1, 2, 3]),
        (AclFilter(operation=Operation.WRITE), [3]),
        (AclFilter(permission=Permission.DENY), [3]),
        (AclFilter(name="zzz"), []),
    ],
)
def test_filter_selects(selected: AclFilter, found: list[int]) -> None:
    assert [FILTERED.index(each) for each in FILTERED if selected.matches(each)] == found


def test_decision_looks_at_matching_patterns_only() -> None:
    """A thousand ACLs add lookups only where they add lengths of prefixes."""
    few = AclIndex([acl(f"topic-{number}", pattern=PatternType.PREFIXED) for number in range(100, 110)])
    many = AclIndex([acl(f"topic-{number}", pattern=PatternType.PREFIXED) for number in range(100, 999)])
    for index in (few, many):
        for number in range(1000):
            index.add(acl("topic-100", principal=f"User:{number}"))
    lookups = []
    for index in (few, many):
        patterns = index._kinds[ResourceKind.TOPIC]
        lookups.append(len(list(patterns.matching("topic-100-x"))))
        assert patterns.prefix_lengths == (9,)
    assert lookups == [1, 1]
