"""AlterUserScramCredentials: create, replace or delete SCRAM credentials of users."""

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.handlers.contexts import QuorumContext
from moldau.machines.access.scram import ScramUser
from moldau.machines.metadata.credentials import NewCredential
from moldau.model.errors import KafkaError
from moldau.wire.messages import AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse

Result = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult


async def handle(
    request: AlterUserScramCredentialsRequest, context: QuorumContext
) -> AlterUserScramCredentialsResponse:
    """Alter or reject each user on its own."""
    context.authorize(Operation.ALTER, CLUSTER)
    deletions = [ScramUser(each.name, each.mechanism) for each in request.deletions]
    upsertions = [
        NewCredential(
            ScramUser(each.name, each.mechanism), each.iterations, bytes(each.salt), bytes(each.salted_password)
        )
        for each in request.upsertions
    ]
    outcomes = await context.broker.metadata.write(
        lambda machine: machine.decide_alter_credentials(deletions, upsertions)
    )
    return AlterUserScramCredentialsResponse(
        results=[Result(user=each.name, error_code=int(each.error), error_message=each.message) for each in outcomes]
    )


def error_response(
    request: AlterUserScramCredentialsRequest,
    error: KafkaError,
    version: int,  # noqa: ARG001
) -> AlterUserScramCredentialsResponse:
    """Return the same error for every user."""
    named = [each.name for each in request.deletions] + [each.name for each in request.upsertions]
    return AlterUserScramCredentialsResponse(
        results=[
            Result(user=name, error_code=int(error.code), error_message=error.message) for name in dict.fromkeys(named)
        ]
    )
