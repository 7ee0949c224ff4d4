"""Client and controller listeners: each serves its own APIs."""

import pytest
from broker_scene import CONTROLLER, WITH_CONTROLLER, Scene, ScriptedAuthorizer, on_broker

from moldau.broker.access import Client, Operation, Resource
from moldau.broker.controllers.forwarded_client import decode_principal, encode_address, encode_principal
from moldau.model.errors import ErrorCode
from moldau.wire import messages as m
from moldau.wire.codec import decode_response
from moldau.wire.framing import RequestHeader, frame_request, in_one_buffer
from moldau.wire.framing import parse_response_header as parse_header

CREATE_TOPICS = 19
CLIENTS_ONLY = {0, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 16, 21, 22, 23, 35, 42, 47, 68, 69, 75}
CONTROLLERS_ONLY = {56, 58, 62, 63, 67, 70}
BOTH = {1, 18, 19, 20, 32, 33, 37, 44, 60}


async def advertised_apis(scene: Scene, **where: object) -> set[int]:
    talker = await scene.connect(**where)  # type: ignore[arg-type]
    response = await talker.ask(3, m.ApiVersionsRequest(client_software_name="t", client_software_version="1"))
    return {each.api_key for each in response.api_keys}


def test_each_listener_advertises_the_apis_that_it_serves() -> None:
    async def script(scene: Scene) -> None:
        clients, controllers = await advertised_apis(scene), await advertised_apis(scene, address=CONTROLLER)
        assert clients >= CLIENTS_ONLY | BOTH
        assert controllers >= CONTROLLERS_ONLY | BOTH
        assert not clients & CONTROLLERS_ONLY
        assert not controllers & CLIENTS_ONLY

    on_broker(script, settings=WITH_CONTROLLER)


@pytest.mark.proves("H6")
def test_api_of_another_listener_closes_the_connection() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        talker.begin(0, m.BrokerHeartbeatRequest(broker_id=1), has_response=False)
        await talker.is_lost.wait()
        talker = await scene.connect(CONTROLLER)
        talker.begin(12, m.MetadataRequest(topics=None), has_response=False)
        await talker.is_lost.wait()

    on_broker(script, settings=WITH_CONTROLLER)


def topic(name: str) -> m.CreateTopicsRequest:
    return m.CreateTopicsRequest(
        topics=[m.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)]
    )


def envelope(request: m.Message, version: int, correlation_id: int = 77) -> m.EnvelopeRequest:
    header = RequestHeader(request.API_KEY, version, correlation_id, "far client")
    return m.EnvelopeRequest(
        request_data=in_one_buffer(frame_request(header, request)),
        request_principal=encode_principal("User:alice"),
        client_host_address=encode_address("10.0.0.9"),
    )


class RecordingAuthorizer(ScriptedAuthorizer):
    """Records the principals; nodes are allowed everything, clients may not alter topics."""

    def __init__(self) -> None:
        self.clients: set[Client] = set()

    def is_allowed(self, client: Client, operation: Operation, resource: Resource) -> bool:  # noqa: ARG002
        self.clients.add(client)
        return True


@pytest.mark.proves("H6")
def test_envelope_returns_the_response_of_the_wrapped_request() -> None:
    authorizer = RecordingAuthorizer()

    async def script(scene: Scene) -> None:
        talker = await scene.connect(CONTROLLER)
        response = await talker.ask(0, envelope(topic("t"), 7))
        assert response.error_code == 0
        correlation_id, position = parse_header(CREATE_TOPICS, 7, memoryview(response.response_data))
        assert correlation_id == 77
        created = decode_response(CREATE_TOPICS, 7, memoryview(response.response_data)[position:])
        assert (created.topics[0].name, created.topics[0].error_code) == ("t", 0)
        assert "t" in scene.node.broker.image.topics
        assert Client("User:alice", "10.0.0.9") in authorizer.clients

    on_broker(script, settings=WITH_CONTROLLER, authorizer=authorizer)


def test_envelope_with_an_invalid_request_is_rejected() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect(CONTROLLER)
        for broken in (
            m.EnvelopeRequest(request_data=b"", client_host_address=b""),
            envelope(m.MetadataRequest(topics=None), 12),
            envelope(topic("t"), 7, -1),
        ):
            if broken.request_data:
                broken.request_data = bytes(broken.request_data)[:-3]
            response = await talker.ask(0, broken)
            assert response.error_code == ErrorCode.INVALID_REQUEST
        nameless = envelope(topic("t"), 7)
        for principal in (None, b"", b"\xff", b"\0\x09", encode_principal("User:a")[:-1]):
            nameless.request_principal = principal
            response = await talker.ask(0, nameless)
            assert response.error_code == ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE
        placeless = envelope(topic("t"), 7)
        placeless.client_host_address = b"10.0.0.9"
        response = await talker.ask(0, placeless)
        assert response.error_code == ErrorCode.INVALID_REQUEST
        assert scene.node.broker.image.topics == {}

    on_broker(script, settings=WITH_CONTROLLER)


def test_describe_cluster_returns_the_endpoints_of_the_listener_kind() -> None:
    async def script(scene: Scene) -> None:
        await scene.node.broker.metadata_publisher.until(lambda image: bool(image.controllers))
        for version in (1, 2):
            talker = await scene.connect(CONTROLLER)
            response = await talker.ask(version, m.DescribeClusterRequest(endpoint_type=2))
            assert [(each.broker_id, each.host, each.port) for each in response.brokers] == [(1, "broker", 9093)]
            assert (response.controller_id, response.endpoint_type, response.error_code) == (1, 2, 0)
            rejected = await talker.ask(version, m.DescribeClusterRequest(endpoint_type=1))
            assert rejected.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE
            talker = await scene.connect()
            response = await talker.ask(version, m.DescribeClusterRequest(endpoint_type=1))
            assert [(each.broker_id, each.host, each.port) for each in response.brokers] == [(1, "broker", 9092)]
            rejected = await talker.ask(version, m.DescribeClusterRequest(endpoint_type=2))
            assert rejected.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE
            unknown = await talker.ask(version, m.DescribeClusterRequest(endpoint_type=3))
            assert unknown.error_code == ErrorCode.UNSUPPORTED_ENDPOINT_TYPE

    on_broker(script, settings=WITH_CONTROLLER)


@pytest.mark.parametrize("is_by_token", [False, True])
def test_forwarded_principal_has_kafkas_format(*, is_by_token: bool) -> None:
    encoded = encode_principal("User:CN=a:b,O=c", is_token_authenticated=is_by_token)
    assert encoded == b"\0\0" + b"\x05User" + b"\x0bCN=a:b,O=c" + bytes([is_by_token]) + b"\0"
    assert decode_principal(encoded) == ("User:CN=a:b,O=c", is_by_token)
