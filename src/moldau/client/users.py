"""SCRAM users of any Kafka cluster: described, altered, deleted."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from moldau.client.async_client import AsyncClient
from moldau.client.errors import check
from moldau.machines.access.scram import MECHANISMS, SALT_BYTES, ScramMechanism, salted_password
from moldau.model.errors import ErrorCode
from moldau.model.ports import Random
from moldau.wire.messages import AlterUserScramCredentialsRequest, DescribeUserScramCredentialsRequest

ITERATIONS_DEFAULT: Final = 8192


@dataclass(frozen=True, slots=True)
class DescribedUser:
    """A user, and the iteration count of each mechanism by its SASL name."""

    name: str
    mechanisms: Mapping[str, int]


class Users:
    """Administers SCRAM users."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def all(self) -> list[DescribedUser]:
        """Return the users with credentials, by name."""
        return await self._describe(None)

    async def find(self, name: str) -> DescribedUser | None:
        return next(iter(await self._describe(name)), None)

    async def set_password(
        self,
        name: str,
        mechanism: str,
        password: str,
        random: Random,
        *,
        iterations: int = ITERATIONS_DEFAULT,
    ) -> None:
        """Create a user, or change the password. The cluster receives a salted hash of it."""
        salt, kind = random.randbytes(SALT_BYTES), MECHANISMS[mechanism]
        upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
            name=name,
            mechanism=kind,
            iterations=iterations,
            salt=salt,
            salted_password=salted_password(kind, password, salt, iterations),
        )
        await self._alter(AlterUserScramCredentialsRequest(upsertions=[upsertion]))

    async def delete(self, name: str, mechanism: str) -> None:
        """Delete the credentials of one mechanism. Sessions that are already authenticated stay open."""
        deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion(name=name, mechanism=MECHANISMS[mechanism])
        await self._alter(AlterUserScramCredentialsRequest(deletions=[deletion]))

    async def _alter(self, request: AlterUserScramCredentialsRequest) -> None:
        response = await self._client.send(request)
        for result in response.results:
            check(result.error_code, result.error_message)

    async def _describe(self, name: str | None) -> list[DescribedUser]:
        wanted = None if name is None else [DescribeUserScramCredentialsRequest.UserName(name=name)]
        response = await self._client.send(DescribeUserScramCredentialsRequest(users=wanted))
        check(response.error_code, response.error_message)
        users = []
        for result in response.results:
            if result.error_code != ErrorCode.RESOURCE_NOT_FOUND:
                check(result.error_code, result.error_message)
                mechanisms = {
                    ScramMechanism(each.mechanism).sasl_name: each.iterations for each in result.credential_infos
                }
                users.append(DescribedUser(result.user, mechanisms))
        return sorted(users, key=lambda user: user.name)
