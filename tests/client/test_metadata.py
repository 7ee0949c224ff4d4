"""The metadata cache: newer leaders replace older ones, never the reverse."""

import pytest

from moldau.client.metadata import Metadata
from moldau.model.errors import ErrorCode
from moldau.model.ids import NodeId
from moldau.wire.messages import MetadataResponse

ID, ANOTHER_ID = b"1" * 16, b"2" * 16


def response_with(
    leader: int, leader_epoch: int, topic_id: bytes = ID, error: ErrorCode = ErrorCode.NONE
) -> MetadataResponse:
    response = MetadataResponse
    partition = response.MetadataResponsePartition(partition_index=0, leader_id=leader, leader_epoch=leader_epoch)
    topic = response.MetadataResponseTopic(
        name="t", topic_id=topic_id, error_code=int(error), partitions=[] if error else [partition]
    )
    brokers = [response.MetadataResponseBroker(node_id=each, host=f"n{each}", port=9092) for each in (1, 2)]
    return response(brokers=brokers, topics=[topic])


def leader_of(metadata: Metadata) -> NodeId:
    return metadata.leader("t", 0).leader


@pytest.mark.proves("H3", part="clients learn the new leader")
def test_older_leader_epoch_is_ignored_after_invalidation() -> None:
    metadata = Metadata()
    metadata.update(response_with(1, 4), 0)
    metadata.update(response_with(2, 5), 0)
    assert leader_of(metadata) == 2
    metadata.update(response_with(1, 4), 0)  # by an isolated broker
    assert leader_of(metadata) == 2
    metadata.forget("t")
    assert metadata.fresh("t", 0, 1000) is None
    metadata.update(response_with(1, 4), 0)
    assert leader_of(metadata) == 2
    metadata.update(response_with(1, 4, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED), 0)
    metadata.update(response_with(1, 4), 0)
    assert leader_of(metadata) == 2
    metadata.update(response_with(1, 6), 0)
    assert leader_of(metadata) == 1


def test_recreated_topic_starts_with_new_epochs() -> None:
    metadata = Metadata()
    metadata.update(response_with(2, 5), 0)
    metadata.forget("t")
    metadata.update(response_with(1, 0, ANOTHER_ID), 0)
    assert leader_of(metadata) == 1


@pytest.mark.proves("H3", part="clients learn the new leader")
def test_lookup_returns_the_newest_known_leader() -> None:
    metadata = Metadata()
    metadata.update(response_with(2, 5), 0)
    metadata.forget("t")
    (view,) = metadata.update(response_with(1, 4), 0)
    assert metadata.leader_in(view, 0).leader == 2


def test_only_the_stale_view_is_invalidated() -> None:
    metadata = Metadata()
    (old,) = metadata.update(response_with(1, 4), 0)
    (new,) = metadata.update(response_with(2, 5), 0)
    metadata.forget("t", old)
    assert leader_of(metadata) == 2
    metadata.forget("t", new)
    assert metadata.fresh("t", 0, 1000) is None
    assert metadata.leader_in(old, 0).leader == 1
