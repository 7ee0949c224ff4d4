"""Authorization of subjects: users log in to the cluster, and the ACLs of topics decide.

A subject belongs to a topic, so that one ACL covers the records and their schemas. The registry asks the cluster, as
the user of the request, which operations on this topic are permitted; nothing is cached, and it knows no ACLs itself.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

from moldau.client.acls import Operation, permitted_cluster_operations, permitted_operations
from moldau.client.async_client import AsyncClient
from moldau.registry.errors import FORBIDDEN, RegistryError, unauthorized

TOPICS_PER_REQUEST: Final = 1_000
NOT_OF_TOPICS: Final = re.compile("[^a-zA-Z0-9._-]")


def topic_of(subject: str) -> str:
    """Return the topic whose ACLs hold for a subject, whatever its naming strategy; empty for all of a context.

    `orders-value`, `orders-key` and `orders-shop.Order` belong to `orders`: names of records have no hyphen. A subject
    without a hyphen (`shop.Order`) is its own topic name. The context does not count, and a character that names of
    topics cannot have counts as `_`.
    """
    name = subject[1:].partition(":")[2] if subject.startswith(":.") else subject
    topic, hyphen, _ = name.rpartition("-")
    return NOT_OF_TOPICS.sub("_", topic if hyphen and topic else name)


class Access(Protocol):
    """The permissions of the sender of a request."""

    async def check(self, subjects: Sequence[str], operation: Operation) -> None:
        """Raise an error for the client unless the operation is permitted on the topics of all subjects."""

    async def check_cluster(self) -> None:
        """Raise an error for the client unless settings of all subjects may be changed."""

    async def visible(self, subjects: Iterable[str]) -> set[str]:
        """Return the subjects that may be described."""


class OpenAccess:
    """Without logins, every client may do everything."""

    async def check(self, subjects: Sequence[str], operation: Operation) -> None:
        pass

    async def check_cluster(self) -> None:
        pass

    async def visible(self, subjects: Iterable[str]) -> set[str]:
        return set(subjects)


class UserAccess:
    """The permissions that the ACLs grant a user; `client` acts as this user."""

    def __init__(self, client: AsyncClient, user: str) -> None:
        self._client, self._user = client, user

    async def check(self, subjects: Sequence[str], operation: Operation) -> None:
        permitted = await self._permitting(subjects, operation)
        for subject in subjects:
            if subject not in permitted:
                text = f"User {self._user} is denied operation {_shown(operation)} on Subject: {subject}"
                raise RegistryError(FORBIDDEN, f"{text} (ACLs of the topic {topic_of(subject)})")

    async def check_cluster(self) -> None:
        if Operation.ALTER_CONFIGS not in await permitted_cluster_operations(self._client):
            text = f"User {self._user} is denied operation {_shown(Operation.ALTER_CONFIGS)} on the Cluster"
            raise RegistryError(FORBIDDEN, text)

    async def visible(self, subjects: Iterable[str]) -> set[str]:
        return await self._permitting(subjects, Operation.DESCRIBE)

    async def _permitting(self, subjects: Iterable[str], operation: Operation) -> set[str]:
        topics = {subject: topic_of(subject) for subject in subjects}
        names = sorted(set(topics.values()))
        permitted: set[str] = set()
        for start in range(0, len(names), TOPICS_PER_REQUEST):
            found = await permitted_operations(self._client, names[start : start + TOPICS_PER_REQUEST])
            permitted |= {name for name, operations in found.items() if operation in operations}
        return {subject for subject, topic in topics.items() if topic in permitted}


def _shown(operation: Operation) -> str:
    return operation.name.title().replace("_", "")


def read_credentials(header: Any) -> tuple[str, str]:
    """Return user and password of an `Authorization` header; raise an error for the client if it has none."""
    scheme, _, encoded = str(header or "").partition(" ")
    if scheme.lower() != "basic":
        raise unauthorized("send the user and password of a SASL user of the cluster (HTTP Basic)")
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise unauthorized("the credentials are not Base64 of UTF-8") from error
    if not colon or not user:
        raise unauthorized("the credentials are not USER:PASSWORD")
    return user, password
