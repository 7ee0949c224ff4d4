"""Message classes: one for all versions, generated on first use."""

import copy
import pickle
import subprocess
import sys

import pytest

from moldau.wire import messages


def test_message_is_built_by_keywords_with_a_default_for_every_field() -> None:
    request = messages.FetchRequest(max_wait_ms=500)
    assert request.max_wait_ms == 500
    assert request.session_epoch == -1
    assert request.max_bytes == 2**31 - 1
    assert request.cluster_id is None
    assert list(request.topics) == []
    assert messages.FetchRequest.FetchTopic().topic_id == bytes(16)


def test_request_knows_its_response_for_type_checkers_only() -> None:
    assert issubclass(messages.FetchRequest, messages.Request)
    assert not issubclass(messages.FetchResponse, messages.Request)
    assert messages.Request[messages.FetchResponse] is messages.Request  # nothing generic at run time


def test_unknown_field_is_rejected() -> None:
    with pytest.raises(TypeError):
        messages.FetchRequest(max_wait=500)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        messages.FetchRequest().max_wait = 500  # type: ignore[attr-defined]


def test_messages_are_equal_by_value_for_lists_and_tuples() -> None:
    topic = messages.MetadataRequest.MetadataRequestTopic
    one = messages.MetadataRequest(topics=[topic(name="a")])
    assert one == messages.MetadataRequest(topics=(topic(name="a"),))
    assert one != messages.MetadataRequest(topics=[topic(name="b")])
    assert one != messages.MetadataRequest(topics=None)
    assert one != "a"
    with pytest.raises(TypeError):
        hash(one)


def test_repr_shows_the_fields() -> None:
    assert repr(messages.TopicRecord(name="a")) == f"TopicRecord(name='a', topic_id={bytes(16)!r})"


def test_required_struct_has_a_default_that_is_not_shared() -> None:
    one, other = messages.VotersRecord.Voter(), messages.VotersRecord.Voter()
    assert one.k_raft_version_feature == messages.VotersRecord.KRaftVersionFeature()
    assert one.k_raft_version_feature is not other.k_raft_version_feature


def test_optional_struct_defaults_to_none() -> None:
    assert messages.FetchResponse.PartitionData().diverging_epoch is None
    assert messages.ConsumerGroupHeartbeatResponse().assignment is None


def test_message_classes_have_an_api_key_and_are_created_once() -> None:
    assert messages.ProduceRequest is messages.ProduceRequest
    assert messages.ProduceRequest.API_KEY == messages.ProduceResponse.API_KEY == 0
    assert messages.TopicRecord.API_KEY == 2
    assert messages.LeaderChangeMessage.API_KEY == -1
    assert messages.ProduceRequest.TopicProduceData.__qualname__ == "ProduceRequest.TopicProduceData"


def test_messages_can_be_copied_and_pickled() -> None:
    topic = messages.MetadataRequest.MetadataRequestTopic
    request = messages.MetadataRequest(topics=[topic(name="a")])
    assert copy.deepcopy(request) == request
    assert pickle.loads(pickle.dumps(request)) == request


def test_unknown_message_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="NoSuchRequest"):
        _ = messages.NoSuchRequest  # type: ignore[attr-defined]
    assert "ProduceRequest" in dir(messages)


def test_importing_the_codec_loads_neither_kio_nor_any_schema() -> None:
    program = (
        "import sys; from moldau.wire import catalogue, codec, framing, messages, data_records; "
        "assert not [name for name in sys.modules if name.split('.')[0] == 'kio']; "
        "assert not catalogue._schemas"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
