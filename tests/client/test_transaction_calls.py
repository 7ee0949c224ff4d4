"""Transaction administration against scripted brokers that are old or loading."""

from typing import Any

import pytest
import scripted_cluster
from scripted_cluster import Script, World

from moldau.client.transactions import ActiveProducer, Transactions
from moldau.client.types import ProducerIdentity
from moldau.model.errors import ErrorCode, UnsupportedVersion
from moldau.model.ids import TopicPartition
from moldau.wire import messages

pytestmark = pytest.mark.proves("P3")

MARKERS, PRODUCERS, TRANSACTIONS = 27, 61, 66
PLACE = TopicPartition("t", 0)
HANGING = ActiveProducer(PLACE, ProducerIdentity(7, 0), 3, None, 0, 12)


@pytest.fixture(autouse=True)
def _with_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    apis = (*scripted_cluster.APIS, MARKERS, PRODUCERS, TRANSACTIONS)
    monkeypatch.setattr(scripted_cluster, "APIS", apis)


def listing(code: int = 0) -> Any:
    response = messages.ListTransactionsResponse
    state = response.TransactionState(transactional_id="x", producer_id=7, transaction_state="Ongoing")
    return response(error_code=code, transaction_states=[] if code else [state])


def writing(code: int = 0) -> Any:
    response = messages.DescribeProducersResponse
    state = response.ProducerState(producer_id=7, producer_epoch=0, last_sequence=3, last_timestamp=5)
    part = response.PartitionResponse(partition_index=0, error_code=code, active_producers=[] if code else [state])
    return response(topics=[response.TopicResponse(name="t", partitions=[part])])


def marked(code: int = 0) -> Any:
    response = messages.WriteTxnMarkersResponse
    part = response.WritableTxnMarkerPartitionResult(partition_index=0, error_code=code)
    topic = response.WritableTxnMarkerTopicResult(name="t", partitions=[part])
    return response(markers=[response.WritableTxnMarkerResult(producer_id=7, topics=[topic])])


def test_list_transactions_is_retried_while_loading() -> None:
    script = Script()
    responses = [listing(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), listing()]
    script.on(1, "ListTransactions", lambda _: listing())
    script.on(2, "ListTransactions", lambda _: responses.pop(0))
    (found,) = World(script).run(lambda client: Transactions(client).all())
    assert (found.transactional_id, found.coordinator) == ("x", 2)


def moved(script: Script, rejection: Any) -> Any:
    def response(_: Any) -> Any:
        script.leader, script.leader_epoch = 2, 6
        return rejection

    return response


def test_producers_are_described_by_the_current_leader() -> None:
    script = Script()
    script.on(1, "DescribeProducers", moved(script, writing(ErrorCode.NOT_LEADER_OR_FOLLOWER)))
    script.on(2, "DescribeProducers", lambda _: writing())
    (found,) = World(script).run(lambda client: Transactions(client).producers([PLACE]))
    assert found.identity == ProducerIdentity(7, 0)


def test_abort_marker_is_written_by_the_current_leader() -> None:
    script = Script()
    script.on(1, "WriteTxnMarkers", moved(script, marked(ErrorCode.NOT_LEADER_OR_FOLLOWER)))
    script.on(2, "WriteTxnMarkers", lambda _: marked())
    World(script).run(lambda client: Transactions(client).abort(HANGING))
    assert [script.requested[node, "WriteTxnMarkers"] for node in (1, 2)] == [1, 1]


@pytest.mark.parametrize(
    ("newest", "filters", "needed"),
    [
        (0, {"open_for_ms": 5}, "1-2"),
        (0, {"pattern": "x.*"}, "2-2"),
        (1, {"pattern": "x.*"}, "2-2"),
        (1, {"open_for_ms": 5, "pattern": "x.*"}, "2-2"),
    ],
)
def test_unsupported_filter_is_rejected(newest: int, filters: dict[str, Any], needed: str) -> None:
    script = Script()
    script.versions = {TRANSACTIONS: (0, newest)}
    for node in (1, 2):
        script.on(node, "ListTransactions", lambda _: listing())
    with pytest.raises(
        UnsupportedVersion, match=f"supports ListTransactions 0-{newest}, this request requires {needed}"
    ):
        World(script).run(lambda client: Transactions(client).all(**filters))


@pytest.mark.parametrize(("newest", "filters"), [(0, {"states": ["Ongoing"]}), (1, {"open_for_ms": 5})])
def test_supported_filters_work_on_an_older_broker(newest: int, filters: dict[str, Any]) -> None:
    script = Script()
    script.versions = {TRANSACTIONS: (0, newest)}
    for node in (1, 2):
        script.on(node, "ListTransactions", lambda _: listing())
    assert len(World(script).run(lambda client: Transactions(client).all(**filters))) == 1
