"""ACLs as Kafka defines them: bindings, filters, and an index that decides without scanning them.

A decision looks at the patterns that match the resource and at nothing else:

    literal name ─┐
    literal "*"  ─┼─> entries of four (principal, host) pairs ──> allow bits, deny bits ──> verdict
    prefixes     ─┘     exact or "User:*", exact or "*"

Prefixes are found by their lengths: the name is cut to each length that some prefix of this resource type has, and
looked up. So the cost of a decision depends on the number of distinct prefix lengths and not on the number of ACLs.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple, TypeVar

WILDCARD: Final = "*"
WILDCARD_PRINCIPAL: Final = "User:*"
ANY_NAME: Final = "hardcode"  # the topic that Kafka asks about when it asks about any topic


class Operation(IntEnum):
    """Operations, with Kafka's numbers. UNKNOWN and ANY occur only in filters."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class ResourceKind(IntEnum):
    """Kinds of resources, with Kafka's numbers. UNKNOWN and ANY occur only in filters."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How a pattern names resources. UNKNOWN, ANY and MATCH occur only in filters."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """Whether an ACL allows or denies. UNKNOWN and ANY occur only in filters."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


_Number = TypeVar("_Number", Operation, ResourceKind, PatternType, Permission)


def known(numbers: type[_Number], number: int) -> _Number:
    """Return the member of this number; UNKNOWN for the number of a later version."""
    try:
        return numbers(number)
    except ValueError:
        return numbers(0)


class Verdict(Enum):
    """The decision of the ACLs about an operation."""

    ALLOWED = "allowed"
    DENIED = "denied"
    NO_ACL = "no ACL for the resource"


class AclBinding(NamedTuple):
    """An ACL: a pattern of resources, and who may or may not do what."""

    kind: ResourceKind
    name: str
    pattern: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission


class AclFilter(NamedTuple):
    """Selects ACLs; ANY and None match everything."""

    kind: ResourceKind = ResourceKind.ANY
    name: str | None = None
    pattern: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches(self, acl: AclBinding) -> bool:
        return (
            self.kind in (ResourceKind.ANY, acl.kind)
            and self._matches_name(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _matches_name(self, acl: AclBinding) -> bool:
        """MATCH selects every pattern that concerns a resource of this name; other types select patterns by name."""
        if self.pattern not in (PatternType.ANY, PatternType.MATCH, acl.pattern):
            return False
        if self.name is None:
            return True
        if self.pattern is not PatternType.MATCH:
            return self.name == acl.name
        if acl.pattern is PatternType.PREFIXED:
            return self.name.startswith(acl.name)
        return acl.name in (self.name, WILDCARD)


class Client(NamedTuple):
    """The client of a request, as ACLs see it."""

    principal: str
    host: str


@lru_cache(maxsize=4096)
def canonical_host(host: str) -> str:
    """Return an address in one form: ACLs and connections may write the same IPv6 address differently."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)


EVERYTHING: Final = (1 << (max(Operation) + 1)) - 1
_IMPLIED: Final[Mapping[Operation, tuple[Operation, ...]]] = {
    Operation.READ: (Operation.DESCRIBE,),
    Operation.WRITE: (Operation.DESCRIBE,),
    Operation.DELETE: (Operation.DESCRIBE,),
    Operation.ALTER: (Operation.DESCRIBE,),
    Operation.ALTER_CONFIGS: (Operation.DESCRIBE_CONFIGS,),
}


def _bits(operation: Operation, permission: Permission) -> int:
    """Return the operations that an ACL concerns. Only what is allowed implies more; a denied READ may DESCRIBE."""
    if operation is Operation.ALL:
        return EVERYTHING
    bits = 1 << operation
    if permission is Permission.ALLOW:
        for implied in _IMPLIED.get(operation, ()):
            bits |= 1 << implied
    return bits


class _Entry:
    """The ACLs of one client pattern on one resource pattern, and what they add up to."""

    __slots__ = ("acls", "allowed", "denied")

    def __init__(self) -> None:
        self.acls: Counter[tuple[Operation, Permission]] = Counter()
        self.allowed = 0
        self.denied = 0

    def change(self, acl: AclBinding, count: int) -> None:
        self.acls[acl.operation, acl.permission] += count
        self.acls += Counter()  # without those that are gone
        self.allowed = self.denied = 0
        for operation, permission in self.acls:
            if permission is Permission.ALLOW:
                self.allowed |= _bits(operation, permission)
            else:
                self.denied |= _bits(operation, permission)


_Entries = dict[Client, _Entry]  # by the principal and host that the ACLs name


@dataclass(slots=True)
class _Patterns:
    """The patterns of one resource type."""

    literals: dict[str, _Entries] = field(default_factory=dict)
    prefixes: dict[str, _Entries] = field(default_factory=dict)
    prefix_lengths: tuple[int, ...] = ()

    def entries(self, pattern: PatternType) -> dict[str, _Entries]:
        return self.prefixes if pattern is PatternType.PREFIXED else self.literals

    def matching(self, name: str) -> Iterator[_Entries]:
        """Yield the entries of all patterns that match the name."""
        found = self.literals.get(name)
        if found is not None:
            yield found
        found = self.literals.get(WILDCARD)
        if found is not None and name != WILDCARD:
            yield found
        for length in self.prefix_lengths:
            if length > len(name):
                return
            found = self.prefixes.get(name[:length])
            if found is not None:
                yield found

    def measure(self) -> None:
        self.prefix_lengths = tuple(sorted({len(prefix) for prefix in self.prefixes}))


class AclIndex:
    """ACLs by resource; `add` and `remove` keep it up to date."""

    def __init__(self, acls: Iterable[AclBinding] = ()) -> None:
        self._kinds: dict[ResourceKind, _Patterns] = {}
        for acl in acls:
            self.add(acl)

    def add(self, acl: AclBinding) -> None:
        patterns = self._kinds.setdefault(acl.kind, _Patterns())
        named = patterns.entries(acl.pattern)
        if acl.name not in named:
            named[acl.name] = {}
            patterns.measure()
        named[acl.name].setdefault(_client_of(acl), _Entry()).change(acl, 1)

    def remove(self, acl: AclBinding) -> None:
        """Remove an ACL that was added."""
        patterns = self._kinds[acl.kind]
        named = patterns.entries(acl.pattern)
        entries, client = named[acl.name], _client_of(acl)
        entry = entries[client]
        entry.change(acl, -1)
        if not entry.acls:
            del entries[client]
        if not entries:
            del named[acl.name]
            patterns.measure()

    def decide(self, client: Client, operation: Operation, kind: ResourceKind, name: str) -> Verdict:
        """Decide about one resource: a matching deny outweighs every allow."""
        patterns = self._kinds.get(kind)
        if patterns is None:
            return Verdict.NO_ACL
        bit, clients = 1 << operation, _patterns_of(client)
        has_acls = is_allowed = False
        for entries in patterns.matching(name):
            has_acls = True
            for each in clients:
                entry = entries.get(each)
                if entry is not None:
                    if entry.denied & bit:
                        return Verdict.DENIED
                    is_allowed = is_allowed or bool(entry.allowed & bit)
        if is_allowed:
            return Verdict.ALLOWED
        return Verdict.DENIED if has_acls else Verdict.NO_ACL

    def allows_any(self, client: Client, operation: Operation, kind: ResourceKind) -> bool:
        """Whether the ACLs allow the operation on at least one resource that may exist.

        An allowed pattern counts unless the same or a shorter prefix is denied, or the same literal name. Implied
        operations do not count, as in Kafka.
        """
        patterns = self._kinds.get(kind)
        if patterns is None:
            return False
        clients = _patterns_of(client)
        denied_names = set(_granted(patterns.literals, clients, operation, Permission.DENY))
        denied_prefixes = set(_granted(patterns.prefixes, clients, operation, Permission.DENY))
        if WILDCARD in denied_names:
            return False
        for name in _granted(patterns.literals, clients, operation, Permission.ALLOW):
            if name == WILDCARD or not (name in denied_names or _has_prefix(name, denied_prefixes)):
                return True
        allowed_prefixes = _granted(patterns.prefixes, clients, operation, Permission.ALLOW)
        return any(not _has_prefix(prefix, denied_prefixes) for prefix in allowed_prefixes)


def _granted(
    named: Mapping[str, _Entries], clients: tuple[Client, ...], operation: Operation, permission: Permission
) -> Iterator[str]:
    """Yield the names of patterns with an ACL of this permission for the operation itself or for ALL."""
    for name, entries in named.items():
        acls = [entry.acls for each in clients if (entry := entries.get(each)) is not None]
        if any((operation, permission) in each or (Operation.ALL, permission) in each for each in acls):
            yield name


def _has_prefix(name: str, prefixes: set[str]) -> bool:
    return any(name[:length] in prefixes for length in range(1, len(name) + 1))


def _client_of(acl: AclBinding) -> Client:
    return Client(acl.principal, canonical_host(acl.host))


def _patterns_of(client: Client) -> tuple[Client, ...]:
    """Return the principals and hosts by which ACLs may name the client."""
    principal, host = client
    return (
        client,
        Client(principal, WILDCARD),
        Client(WILDCARD_PRINCIPAL, host),
        Client(WILDCARD_PRINCIPAL, WILDCARD),
    )
