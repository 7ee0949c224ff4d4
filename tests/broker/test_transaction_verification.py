"""Verification of a transaction's first batch in a partition by the transaction coordinator."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from broker_scene import Scene, batch, produce_request
from writer_scene import NONE, NOW_MS, Writer, play, values

from moldau.broker.partitions.transaction_end import TransactionEnding, end_transaction
from moldau.broker.requests.context import RequestContext
from moldau.broker.requests.router import Api
from moldau.model.errors import ErrorCode, KafkaError
from moldau.wire.messages import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse

Response = AddPartitionsToTxnResponse


class FixedCoordinator:
    """Replaces the coordinator: returns one code for every request, after a delay or an action if given."""

    def __init__(self, scene: Scene, code: ErrorCode = NONE, meanwhile: Callable[[], Awaitable[None]] | None = None):
        self.code = code
        self.requested: list[AddPartitionsToTxnRequest] = []
        self.meanwhile = meanwhile
        self.failure: KafkaError | OSError | None = None
        apis: Any = scene.node.routers.broker.apis
        key = AddPartitionsToTxnRequest.API_KEY
        apis[key] = Api(key, "AddPartitionsToTxn", 0, 5, self.handle, self.error_response)

    async def handle(self, request: AddPartitionsToTxnRequest, context: RequestContext[Any]) -> Response:
        assert context.api_version >= 4
        self.requested.append(request)
        if self.meanwhile is not None:
            await self.meanwhile()
        if self.failure is not None:
            raise self.failure
        return Response(results_by_transaction=[self._respond(each) for each in request.transactions])

    def _respond(self, requested: Any) -> Any:
        topics = [
            Response.AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    Response.AddPartitionsToTxnPartitionResult(
                        partition_index=index, partition_error_code=int(self.code)
                    )
                    for index in topic.partitions
                ],
            )
            for topic in requested.topics
        ]
        return Response.AddPartitionsToTxnResult(transactional_id=requested.transactional_id, topic_results=topics)

    def error_response(self, request: Any, error: Exception, version: int) -> Any:
        raise NotImplementedError


def end_offset(scene: Scene, partition: int = 0) -> int:
    return scene.node.broker.partitions.get("t", partition).log.end_offset


@pytest.mark.proves("P3")
@pytest.mark.parametrize(
    ("version", "code"),
    [(9, ErrorCode.INVALID_TXN_STATE), (10, ErrorCode.INVALID_TXN_STATE), (11, ErrorCode.TRANSACTION_ABORTABLE)],
)
def test_batch_without_a_joined_partition_is_rejected(version: int, code: ErrorCode) -> None:
    async def script(scene: Scene, writer: Writer) -> None:
        assert await writer.add(("t", 1)) is NONE
        assert (await writer.send(b"a", version=version)).error_code == code
        assert end_offset(scene) == 0
        assert await writer.commit_offset(1, version=3) is ErrorCode.NOT_COORDINATOR
        await scene.node.broker.groups.coordinator_of("g")
        assert await writer.commit_offset(1, version=3) is ErrorCode.INVALID_TXN_STATE
        assert await writer.commit_offset(1, version=4) is ErrorCode.TRANSACTION_ABORTABLE

    play(script, 1)


@pytest.mark.proves("P3")
def test_zombie_is_fenced_before_its_partition_learns_of_the_new_epoch() -> None:
    async def script(scene: Scene, writer: Writer) -> None:
        await scene.node.broker.groups.coordinator_of("g")
        successor = Writer(scene, writer.talker, version=writer.version)
        assert await successor.init() is NONE
        for version in (9, 12):
            assert (await writer.send(b"zombie", version=version)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        for version in (3, 5):
            assert await writer.commit_offset(1, version=version) is ErrorCode.INVALID_PRODUCER_EPOCH
        await successor.write(b"a")
        await successor.finish()
        assert await values(writer.talker) == [b"a"]

    play(script)


def test_missing_or_foreign_transactional_id_is_rejected() -> None:
    async def script(scene: Scene, writer: Writer) -> None:
        stranger = Writer(scene, writer.talker, "unknown")
        stranger.producer_id, stranger.epoch = 77, 0
        assert (await stranger.send(b"a")).error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        thief = Writer(scene, writer.talker)
        thief.producer_id, thief.epoch = 77, 0
        assert (await thief.send(b"a")).error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert end_offset(scene) == 0

    play(script)


@pytest.mark.proves("P3")
@pytest.mark.parametrize(
    ("code", "produce_9", "produce_12", "commit_3", "commit_5"),
    [
        ("NOT_COORDINATOR", "NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS", "NOT_COORDINATOR", "NOT_COORDINATOR"),
        (
            "COORDINATOR_NOT_AVAILABLE",
            "NOT_ENOUGH_REPLICAS",
            "NOT_ENOUGH_REPLICAS",
            "COORDINATOR_NOT_AVAILABLE",
            "COORDINATOR_NOT_AVAILABLE",
        ),
        (
            "CONCURRENT_TRANSACTIONS",
            "NOT_ENOUGH_REPLICAS",
            "CONCURRENT_TRANSACTIONS",
            "COORDINATOR_LOAD_IN_PROGRESS",
            "CONCURRENT_TRANSACTIONS",
        ),
        ("PRODUCER_FENCED", *(4 * ["INVALID_PRODUCER_EPOCH"])),
        ("CLUSTER_AUTHORIZATION_FAILED", *(4 * ["INVALID_TXN_STATE"])),
        ("INVALID_TXN_STATE", *(4 * ["INVALID_TXN_STATE"])),
        (
            "NETWORK_EXCEPTION",
            "NOT_ENOUGH_REPLICAS",
            "NOT_ENOUGH_REPLICAS",
            "COORDINATOR_LOAD_IN_PROGRESS",
            "COORDINATOR_LOAD_IN_PROGRESS",
        ),
    ],
)
def test_coordinator_errors_are_mapped_per_version(
    code: str, produce_9: str, produce_12: str, commit_3: str, commit_5: str
) -> None:
    async def script(scene: Scene, writer: Writer) -> None:
        await scene.node.broker.groups.coordinator_of("g")
        fixed = FixedCoordinator(scene, ErrorCode[code])
        if code == "NETWORK_EXCEPTION":
            fixed.failure = ConnectionResetError("gone")
        codes = [ErrorCode((await writer.send(b"a", version=version)).error_code).name for version in (9, 12)]
        assert codes == [produce_9, produce_12]
        codes = [(await writer.commit_offset(1, version=version)).name for version in (3, 5)]
        assert codes == [commit_3, commit_5]
        assert end_offset(scene) == 0

    play(script)


def test_transaction_that_starts_while_the_last_one_ends_waits() -> None:
    async def script(scene: Scene, writer: Writer) -> None:
        fixed = FixedCoordinator(scene, ErrorCode.CONCURRENT_TRANSACTIONS)

        async def end() -> None:
            if len(fixed.requested) == 3:
                fixed.code = NONE

        fixed.meanwhile = end
        assert (await writer.send(b"a")).error_code == 0
        assert len(fixed.requested) == 3

    play(script)


@pytest.mark.proves("P3")
@pytest.mark.parametrize("markers", [1, 9])
def test_marker_between_verification_and_append_triggers_another_check(markers: int) -> None:
    async def script(scene: Scene, writer: Writer) -> None:
        partition = scene.node.broker.partitions.get("t", 0)
        left = [markers]

        async def end() -> None:
            if left[0]:
                left[0] -= 1
                ending = TransactionEnding(writer.producer_id, writer.epoch, 0, is_commit=False)
                end_transaction(partition, ending, NOW_MS)

        fixed = FixedCoordinator(scene, meanwhile=end)
        response = await writer.send(b"a", version=9)
        if markers == 1:
            assert (response.error_code, response.base_offset, len(fixed.requested)) == (0, 1, 2)
        else:
            assert (response.error_code, len(fixed.requested)) == (ErrorCode.INVALID_TXN_STATE, 3)
            assert end_offset(scene) == 3, "the markers alone"

    play(script, 1)


@pytest.mark.proves("P3")
def test_batches_behind_the_first_one_keep_their_order() -> None:
    async def script(scene: Scene, writer: Writer) -> None:
        async def slowly() -> None:
            await asyncio.sleep(0.5)

        fixed = FixedCoordinator(scene, meanwhile=slowly)
        waits = []
        for sequence in range(5):
            request = produce_request("t", writer.batch(b"%d" % sequence, base_sequence=sequence))
            request.transactional_id = writer.transactional_id
            waits.append(writer.talker.begin(12, request))
        responses = [(await wait).responses[0].partition_responses[0] for wait in waits]
        assert [(each.error_code, each.base_offset) for each in responses] == [(0, offset) for offset in range(5)]
        assert len(fixed.requested) == 1

    play(script)


def test_duplicate_batch_is_acknowledged_without_verification() -> None:
    async def script(scene: Scene, writer: Writer) -> None:
        assert await writer.write(b"a") == 0
        await writer.finish()
        fixed = FixedCoordinator(scene, ErrorCode.INVALID_TXN_STATE)
        response = await writer.send(b"a", base_sequence=0)
        assert (response.error_code, response.base_offset, fixed.requested) == (0, 0, [])

    play(script, 1)


def test_partitions_are_verified_together_and_rejected_individually() -> None:
    async def script(scene: Scene, writer: Writer) -> None:  # noqa: ARG001
        assert await writer.add(("t", 1)) is NONE
        request = produce_request("t", writer.batch(b"a"))
        request.transactional_id = writer.transactional_id
        data = type(request.topic_data[0].partition_data[0])(index=1, records=writer.batch(b"b", partition=1))
        request.topic_data[0].partition_data = [*request.topic_data[0].partition_data, data]
        response = await writer.talker.ask(11, request)
        codes = [each.error_code for each in response.responses[0].partition_responses]
        assert codes == [ErrorCode.TRANSACTION_ABORTABLE, NONE]
        data.records = writer.batch(b"b", producer_id=999)
        (result, _) = (await writer.talker.ask(12, request)).responses[0].partition_responses
        assert result.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING

    play(script, 1)


def test_with_verification_disabled_only_implicit_joins_are_sent() -> None:
    async def script(scene: Scene, writer: Writer) -> None:
        fixed = FixedCoordinator(scene)
        assert (await writer.send(b"a", version=11)).error_code == 0
        assert not fixed.requested
        assert (await writer.send(b"b", partition=1, version=12)).error_code == 0
        assert [each.verify_only for each in fixed.requested[0].transactions] == [False]

    play(script, 1, "transaction.partition.verification.enable=false")


def test_plain_batch_in_a_transactional_request_is_appended() -> None:
    async def script(scene: Scene, writer: Writer) -> None:
        request = produce_request("t", batch(b"plain", timestamp=NOW_MS))
        request.transactional_id = writer.transactional_id
        assert (await writer.talker.ask(9, request)).responses[0].partition_responses[0].error_code == 0
        assert end_offset(scene) == 1

    play(script)


@pytest.mark.proves("P2")
@pytest.mark.parametrize(("version", "code"), [(11, NONE), (12, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)])
def test_first_batch_of_a_transaction_version_2_epoch_has_sequence_0(version: int, code: ErrorCode) -> None:
    async def script(scene: Scene, writer: Writer) -> None:
        FixedCoordinator(scene)
        assert (await writer.send(b"late", version=version, base_sequence=3)).error_code == code
        assert end_offset(scene) == (0 if code else 1)

    play(script)


@pytest.mark.proves("P3")
@pytest.mark.parametrize("is_passing", [True, False])
def test_rejected_batch_must_be_retried_first_unless_the_error_is_final(is_passing: bool) -> None:
    async def script(scene: Scene, writer: Writer) -> None:
        fixed = FixedCoordinator(scene, ErrorCode.NOT_COORDINATOR if is_passing else ErrorCode.TRANSACTION_ABORTABLE)
        assert (await writer.send(b"a", version=11, base_sequence=3)).error_code != 0
        fixed.code = NONE
        response = await writer.send(b"b", version=11, base_sequence=4)
        assert response.error_code == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER if is_passing else NONE)

    play(script, 1)


@pytest.mark.proves("P2")
def test_sequence_gap_is_reported_before_an_unknown_transaction() -> None:
    """A producer resets its sequence after a gap; after any other error it keeps retrying."""

    async def script(scene: Scene, writer: Writer) -> None:
        assert await writer.write(b"a") == 0
        await writer.finish()
        assert await writer.add(("t", 0)) is NONE
        response = await writer.send(b"c", version=11, base_sequence=2)
        assert response.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (await writer.send(b"b", version=11, base_sequence=1)).error_code == NONE
        assert end_offset(scene) == 3  # with the marker of the first

    play(script, 1)
