"""DescribeUserScramCredentials: which users have SCRAM credentials, with mechanism and iterations."""

from collections import Counter
from collections.abc import Mapping

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.handlers.contexts import MetadataContext
from moldau.machines.access.scram import ScramCredential, ScramUser
from moldau.model.errors import ErrorCode
from moldau.wire.messages import DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse

Result = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
Info = DescribeUserScramCredentialsResponse.CredentialInfo


async def handle(
    request: DescribeUserScramCredentialsRequest, context: MetadataContext
) -> DescribeUserScramCredentialsResponse:
    """Describe the requested users, or all."""
    context.authorize(Operation.DESCRIBE, CLUSTER)
    by_user = _by_user(context.broker.image.scram_credentials)
    times = Counter(each.name for each in request.users or ())
    names = times or dict.fromkeys(sorted(by_user), 1)
    return DescribeUserScramCredentialsResponse(
        results=[_result(name, by_user, is_repeated=count > 1) for name, count in names.items()]
    )


def _by_user(credentials: Mapping[ScramUser, ScramCredential]) -> dict[str, list[tuple[int, int]]]:
    """Return mechanism and iterations of each credential, by user."""
    by_user: dict[str, list[tuple[int, int]]] = {}
    for user, credential in sorted(credentials.items()):
        by_user.setdefault(user.name, []).append((user.mechanism, credential.iterations))
    return by_user


def _result(name: str, by_user: Mapping[str, list[tuple[int, int]]], *, is_repeated: bool) -> Result:
    if is_repeated:
        return Result(
            user=name,
            error_code=int(ErrorCode.DUPLICATE_RESOURCE),
            error_message=f"User {name} appears more than once in the request.",
        )
    if name not in by_user:
        return Result(
            user=name,
            error_code=int(ErrorCode.RESOURCE_NOT_FOUND),
            error_message=f"User {name} has no SCRAM credentials.",
        )
    infos = [Info(mechanism=mechanism, iterations=times) for mechanism, times in by_user[name]]
    return Result(user=name, credential_infos=infos)
