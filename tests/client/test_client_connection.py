"""The sans-IO connection: negotiation, matching of responses, limits and timeouts."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from moldau.client.connection import ClientConnection, Close, Deliver, Effect, Fail, Phase, SendFrame
from moldau.client.errors import ConnectionLost, ResponseTimeout, TooManyPendingRequests
from moldau.client.security import Authentication
from moldau.client.settings import ClientSettings
from moldau.model.errors import ErrorCode, KafkaError, UnsupportedVersion
from moldau.wire import codec, framing, messages

API_VERSIONS = 18
HEARTBEAT = 12
METADATA = 3
SETTINGS = ClientSettings(requests_in_flight_max=2, requests_waiting_max=3, request_timeout_ms=1000)
NEWEST = (codec.versions(API_VERSIONS) or (0, 0))[1]


def conversation(settings: ClientSettings = SETTINGS, authentication: Authentication | None = None) -> ClientConnection:
    return ClientConnection("broker:9092", settings, lambda: authentication)


def frame_of(pieces: list[Any]) -> memoryview:
    return memoryview(b"".join(bytes(each) for each in pieces))[4:]


def only_request(effects: list[Effect]) -> tuple[framing.RequestHeader, Any]:
    """The one request among the effects."""
    (sent,) = (each for each in effects if isinstance(each, SendFrame))
    frame = frame_of(sent.pieces)
    header, position = framing.parse_request_header(frame)
    return header, codec.decode_request(header.api_key, header.api_version, frame[position:])


def response_frame(header: framing.RequestHeader, response: Any, version: int | None = None) -> memoryview:
    spoken = header.api_version if version is None else version
    return frame_of(framing.frame_response(header.api_key, spoken, header.correlation_id, response))


def offers(error_code: int = 0, /, **ranges: tuple[int, int]) -> Any:
    keys = {"versions": API_VERSIONS, "heartbeat": HEARTBEAT, "metadata": METADATA, "produce": 0, "sasl": 17}
    response = messages.ApiVersionsResponse
    api_keys = [
        response.ApiVersion(api_key=keys[name], min_version=low, max_version=high)
        for name, (low, high) in ranges.items()
    ]
    return response(error_code=error_code, api_keys=api_keys)


def ready(settings: ClientSettings = SETTINGS, /, **ranges: tuple[int, int]) -> ClientConnection:
    connection = conversation(settings)
    header, _ = only_request(connection.opened(0))
    connection.received(response_frame(header, offers(**(ranges or {"heartbeat": (0, 4), "produce": (3, 9)}))), 0)
    assert connection.phase is Phase.READY
    return connection


def failures(effects: list[Effect]) -> dict[int, Exception]:
    return {each.ticket: each.error for each in effects if isinstance(each, Fail)}


def closing(effects: list[Effect]) -> str:
    (close,) = (each for each in effects if isinstance(each, Close))
    return close.reason


def heartbeat(group: str = "g") -> Any:
    return messages.HeartbeatRequest(group_id=group)


# Negotiation


def test_newest_api_versions_version_is_tried_first() -> None:
    header, request = only_request(conversation().opened(0))
    assert (header.api_key, header.api_version, header.client_id) == (API_VERSIONS, NEWEST, "moldau")
    assert request.client_software_name == "moldau"


def test_highest_common_version_is_used_after_negotiation() -> None:
    connection = ready(heartbeat=(0, 3))
    header, _ = only_request(connection.submit(1, heartbeat(), 0))
    assert header.api_version == 3
    assert connection.version_for(HEARTBEAT) == 3


def test_newer_broker_gets_the_newest_client_version() -> None:
    connection = ready(heartbeat=(0, 99))
    assert connection.version_for(HEARTBEAT) == (codec.versions(HEARTBEAT) or (0, 0))[1]


def test_unsupported_version_with_a_range_retries_in_that_range() -> None:
    connection = conversation()
    header, _ = only_request(connection.opened(0))
    rejection = response_frame(header, offers(ErrorCode.UNSUPPORTED_VERSION, versions=(0, 2)), version=0)
    again, _ = only_request(connection.received(rejection, 0))
    assert again.api_version == 2
    connection.received(response_frame(again, offers(heartbeat=(0, 1))), 0)
    assert connection.phase is Phase.READY
    assert connection.version_for(HEARTBEAT) == 1


def test_unsupported_version_without_a_range_retries_version_0() -> None:
    connection = conversation()
    header, _ = only_request(connection.opened(0))
    again, _ = only_request(
        connection.received(response_frame(header, offers(ErrorCode.UNSUPPORTED_VERSION), version=0), 0)
    )
    assert again.api_version == 0
    connection.received(response_frame(again, offers(heartbeat=(0, 0))), 0)
    assert connection.phase is Phase.READY


def test_unsupported_version_with_a_truncated_body_retries_version_0() -> None:
    connection = conversation()
    header, _ = only_request(connection.opened(0))
    cut = header.correlation_id.to_bytes(4, "big") + int(ErrorCode.UNSUPPORTED_VERSION).to_bytes(2, "big")
    again, _ = only_request(connection.received(memoryview(cut), 0))
    assert again.api_version == 0


def test_connection_closes_when_every_api_versions_version_is_rejected() -> None:
    connection = conversation()
    effects = connection.opened(0)
    tried = []
    while connection.phase is Phase.NEGOTIATING:
        header, _ = only_request(effects)
        tried.append(header.api_version)
        effects = connection.received(
            response_frame(header, offers(ErrorCode.UNSUPPORTED_VERSION, versions=(0, 99)), version=0), 0
        )
    assert tried == list(range(NEWEST, -1, -1))
    assert "supports no version of ApiVersions" in closing(effects)


def test_negotiation_error_is_reported() -> None:
    connection = conversation()
    header, _ = only_request(connection.opened(0))
    effects = connection.received(response_frame(header, offers(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)), 0)
    assert "rejected ApiVersions: cluster authorization failed" in closing(effects)


@pytest.mark.parametrize("body", [b"", b"\x00", b"\x00\x00\x7f\xff\xff\xff"])
def test_malformed_api_versions_response_closes_the_connection(body: bytes) -> None:
    connection = conversation()
    header, _ = only_request(connection.opened(0))
    connection.submit(1, heartbeat(), 0)
    effects = connection.received(memoryview(header.correlation_id.to_bytes(4, "big") + body), 0)
    assert isinstance(failures(effects)[1], ConnectionLost)
    assert connection.phase is Phase.CLOSED


def test_connection_lost_in_negotiation_hints_at_the_listener() -> None:
    connection = conversation()
    connection.opened(0)
    assert "is it a Kafka listener" in closing(connection.lost(""))


def test_negotiation_times_out() -> None:
    connection = conversation()
    connection.opened(0)
    connection.submit(1, heartbeat(), 500)
    assert connection.wake_at_ms == 1000
    assert not connection.time_passed(999)
    effects = connection.time_passed(1000)
    assert "did not respond to ApiVersions in time" in closing(effects)
    error = failures(effects)[1]
    assert isinstance(error, ConnectionLost)
    assert not error.was_sent


def test_finalized_features_are_kept() -> None:
    connection = conversation()
    header, _ = only_request(connection.opened(0))
    response = offers(heartbeat=(0, 4))
    feature = messages.ApiVersionsResponse.FinalizedFeatureKey
    response.finalized_features = [feature(name="metadata.version", max_version_level=25, min_version_level=25)]
    connection.received(response_frame(header, response), 0)
    assert connection.features == {"metadata.version": 25}


# Versions


@pytest.mark.parametrize(
    ("ranges", "limit", "words"),
    [
        ({"metadata": (0, 12)}, None, "does not support Heartbeat"),
        ({"heartbeat": (40, 41)}, None, "supports Heartbeat 40-41"),
        ({"heartbeat": (3, 4)}, 2, "supports Heartbeat 3-4, this request requires 0-2"),
    ],
)
def test_request_without_a_common_version_fails_alone(
    ranges: dict[str, tuple[int, int]], limit: int | None, words: str
) -> None:
    connection = ready(**ranges)
    (fail,) = connection.submit(1, heartbeat(), 0, version_at_most=limit)
    assert isinstance(fail, Fail)
    assert isinstance(fail.error, UnsupportedVersion)
    assert words in fail.error.message
    assert connection.phase is Phase.READY


def test_request_can_limit_its_version() -> None:
    header, _ = only_request(ready().submit(1, heartbeat(), 0, version_at_most=1))
    assert header.api_version == 1


def test_unencodable_request_fails_alone() -> None:
    connection = ready()
    effects = connection.submit(1, messages.HeartbeatRequest(group_id=12), 0)  # type: ignore[arg-type]
    assert set(failures(effects)) == {1}
    assert only_request(connection.submit(2, heartbeat(), 0))
    assert connection.phase is Phase.READY


# Requests and responses


def test_requests_are_queued_until_negotiated_and_sent_in_order() -> None:
    connection = conversation()
    header, _ = only_request(connection.opened(0))
    assert connection.submit(1, heartbeat("one"), 0) == []
    assert connection.submit(2, heartbeat("two"), 0) == []
    sent = connection.received(response_frame(header, offers(heartbeat=(0, 4))), 0)
    assert [only_request([each])[1].group_id for each in sent] == ["one", "two"]


def test_response_is_delivered_to_its_ticket() -> None:
    connection = ready()
    first, _ = only_request(connection.submit(7, heartbeat(), 0))
    second, _ = only_request(connection.submit(8, heartbeat(), 0))
    assert first.correlation_id != second.correlation_id
    for ticket, header in ((7, first), (8, second)):
        (delivered,) = connection.received(response_frame(header, messages.HeartbeatResponse(error_code=ticket)), 0)
        assert isinstance(delivered, Deliver)
        assert (delivered.ticket, delivered.response.error_code) == (ticket, ticket)
    assert connection.is_idle


def test_requests_in_flight_are_limited() -> None:
    connection = ready()
    headers = [only_request(connection.submit(ticket, heartbeat(), 0))[0] for ticket in (1, 2)]
    assert connection.submit(3, heartbeat("third"), 0) == []
    effects = connection.received(response_frame(headers[0], messages.HeartbeatResponse()), 0)
    assert only_request(effects)[1].group_id == "third"


def test_queued_requests_are_limited() -> None:
    connection = ready()
    for ticket in range(5):
        connection.submit(ticket, heartbeat(), 0)
    (fail,) = connection.submit(5, heartbeat(), 0)
    assert isinstance(fail, Fail)
    assert isinstance(fail.error, TooManyPendingRequests)


def test_acks_zero_produce_completes_when_sent() -> None:
    connection = ready()
    sent, delivered = connection.submit(1, messages.ProduceRequest(acks=0), 0)
    assert isinstance(sent, SendFrame)
    assert delivered == Deliver(1, None)
    assert connection.is_idle


def test_throttled_client_pauses_for_the_throttle_time() -> None:
    connection = ready()
    header, _ = only_request(connection.submit(1, heartbeat(), 0))
    connection.received(response_frame(header, messages.HeartbeatResponse(throttle_time_ms=300)), 100)
    assert connection.submit(2, heartbeat(), 150) == []
    assert connection.wake_at_ms <= 400
    assert not connection.time_passed(399)
    assert only_request(connection.time_passed(400))


# Endings


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (lambda header: memoryview((header.correlation_id + 1).to_bytes(4, "big")), "wrong correlation id"),
        (lambda _: memoryview(b"\0\0"), "wrong correlation id"),
        (lambda header: memoryview(header.correlation_id.to_bytes(4, "big")), "is malformed"),
    ],
)
def test_broken_stream_closes_the_connection_and_fails_all_requests(
    frame: Callable[[framing.RequestHeader], memoryview], words: str
) -> None:
    connection = ready()
    header, _ = only_request(connection.submit(1, heartbeat(), 0))
    connection.submit(2, heartbeat(), 0)
    connection.submit(3, heartbeat(), 0)
    effects = connection.received(frame(header), 0)
    assert words in closing(effects)
    assert {
        ticket: error.was_sent for ticket, error in failures(effects).items() if isinstance(error, ConnectionLost)
    } == {
        1: True,
        2: True,
        3: False,
    }


def test_trailing_bytes_of_a_response_are_ignored() -> None:
    connection = ready()
    header, _ = only_request(connection.submit(1, heartbeat(), 0))
    (delivered,) = connection.received(
        memoryview(bytes(response_frame(header, messages.HeartbeatResponse())) + b"\0"), 0
    )
    assert isinstance(delivered, Deliver)


def test_unexpected_response_closes_the_connection() -> None:
    assert "unexpected response" in closing(ready().received(memoryview(b"\0\0\0\0"), 0))


def test_response_timeout_closes_the_connection() -> None:
    connection = ready()
    connection.submit(1, heartbeat(), 0)
    connection.submit(2, heartbeat(), 10, timeout_ms=5000)
    connection.submit(3, heartbeat(), 20, timeout_ms=5000)
    connection.submit(4, heartbeat(), 20, timeout_ms=980)
    errors = failures(connection.time_passed(1000))
    assert isinstance(errors[1], ResponseTimeout)
    assert errors[1].was_sent
    assert isinstance(errors[2], ConnectionLost)
    assert errors[2].was_sent
    assert isinstance(errors[3], ConnectionLost)
    assert not errors[3].was_sent
    assert isinstance(errors[4], ResponseTimeout)
    assert not errors[4].was_sent
    assert connection.phase is Phase.CLOSED
    assert connection.wake_at_ms == math.inf


def test_queued_request_that_times_out_fails_alone() -> None:
    connection = ready()
    for ticket in (1, 2):
        connection.submit(ticket, heartbeat(), 0)
    connection.submit(3, heartbeat(), 0, timeout_ms=50)
    errors = failures(connection.time_passed(50))
    assert set(errors) == {3}
    assert connection.phase is Phase.READY
    assert connection.wake_at_ms == 1000


def test_closed_connection_ignores_frames_and_rejects_requests() -> None:
    connection = ready()
    assert closing(connection.lost("reset by peer")).endswith("reset by peer")
    assert connection.lost("again") == []
    assert connection.received(memoryview(b"\0\0\0\0"), 0) == []
    assert connection.time_passed(10_000) == []
    (fail,) = connection.submit(1, heartbeat(), 0)
    assert isinstance(fail, Fail)
    assert isinstance(fail.error, ConnectionLost)
    assert not fail.error.was_sent


# Authentication


def shake_hands() -> Authentication:
    response = yield messages.SaslHandshakeRequest(mechanism="PLAIN")
    if response.error_code:
        raise KafkaError("no such mechanism")


def test_requests_are_queued_until_authenticated() -> None:
    connection = conversation(authentication=shake_hands())
    header, _ = only_request(connection.opened(0))
    connection.submit(1, heartbeat(), 0)
    shake, request = only_request(connection.received(response_frame(header, offers(heartbeat=(0, 4), sasl=(0, 1))), 0))
    assert connection.phase is Phase.AUTHENTICATING
    assert request.mechanism == "PLAIN"
    sent, _ = only_request(connection.received(response_frame(shake, messages.SaslHandshakeResponse()), 0))
    assert sent.api_key == HEARTBEAT


def test_rejected_authentication_fails_all_requests() -> None:
    connection = conversation(authentication=shake_hands())
    header, _ = only_request(connection.opened(0))
    connection.submit(1, heartbeat(), 0)
    shake, _ = only_request(connection.received(response_frame(header, offers(heartbeat=(0, 4), sasl=(0, 1))), 0))
    effects = connection.received(response_frame(shake, messages.SaslHandshakeResponse(error_code=33)), 0)
    assert str(failures(effects)[1]) == "no such mechanism"
    assert "rejected the authentication" in closing(effects)


def test_missing_sasl_support_is_reported() -> None:
    connection = conversation(authentication=shake_hands())
    header, _ = only_request(connection.opened(0))
    connection.submit(1, heartbeat(), 0)
    effects = connection.received(response_frame(header, offers(heartbeat=(0, 4))), 0)
    assert "does not support SaslHandshake" in str(failures(effects)[1])


@pytest.mark.proves("H3", part="clients learn the new leader")
def test_time_in_the_queue_does_not_count_as_response_time() -> None:
    connection = ready(ClientSettings(requests_in_flight_max=1, request_timeout_ms=1000))
    header, _ = only_request(connection.submit(1, heartbeat(), 0))
    connection.submit(2, heartbeat(), 0)
    queued, _ = only_request(connection.received(response_frame(header, messages.HeartbeatResponse()), 900))
    assert not connection.time_passed(1000)
    assert connection.wake_at_ms == 1900
    assert not connection.time_passed(1899)
    assert connection.phase is Phase.READY
    delivered = connection.received(response_frame(queued, messages.HeartbeatResponse()), 1899)
    assert [each.ticket for each in delivered if isinstance(each, Deliver)] == [2]


def test_queue_timeout_is_not_sent_and_keeps_the_connection() -> None:
    connection = ready(ClientSettings(requests_in_flight_max=1, request_timeout_ms=1000))
    connection.submit(1, heartbeat(), 0, timeout_ms=5000)
    connection.submit(2, heartbeat(), 0)
    error = failures(connection.time_passed(1000))[2]
    assert isinstance(error, ResponseTimeout)
    assert not error.was_sent
    assert connection.phase is Phase.READY


def test_request_that_requires_a_newer_version_is_rejected() -> None:
    connection = ready(heartbeat=(0, 2))
    (fail,) = connection.submit(1, heartbeat(), 0, version_at_least=3)
    assert isinstance(fail, Fail)
    assert isinstance(fail.error, UnsupportedVersion)
    assert "supports Heartbeat 0-2, this request requires 3-4" in fail.error.message
