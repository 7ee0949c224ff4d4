"""KIP-714: subscriptions of clients, pushes of their metrics, and what the metrics page shows of them."""

import asyncio
from typing import Any

import pytest
from broker_scene import BROKER, Scene, Talker, on_broker
from test_metrics import page_of, samples
from test_otlp import NODE, counter, gauge, payload_of

from moldau.broker.telemetry import client_instances, client_telemetry
from moldau.model.errors import ErrorCode
from moldau.records.compression import Compression, compress
from moldau.wire import messages as m

pytestmark = pytest.mark.proves("O1", part="metrics that clients push")

CLIENT_METRICS = 16
SET, DELETE = 0, 1
NO_ID = bytes(16)
SENT = "org.apache.kafka.producer.record.send.total"
LATENCY = "org.apache.kafka.producer.request.latency.avg"
NO_DEFAULT = "moldau.telemetry.default.metrics="
EVERY_SECOND = "moldau.telemetry.default.interval.ms=1000"


class TelemetryTalker:
    """A client with one instance id."""

    def __init__(self, talker: Talker) -> None:
        self.talker = talker
        self.id = NO_ID
        self.subscription_id = 0

    async def get(self) -> Any:
        response = await self.talker.ask(0, m.GetTelemetrySubscriptionsRequest(client_instance_id=self.id))
        if not response.error_code:
            response.requested_metrics = tuple(response.requested_metrics)
            self.id, self.subscription_id = response.client_instance_id, response.subscription_id
        return response

    async def push(self, payload: bytes = b"", codec: int = 0, **fields: Any) -> ErrorCode:
        request = m.PushTelemetryRequest(
            **{
                "client_instance_id": self.id,
                "subscription_id": self.subscription_id,
                "compression_type": codec,
                "metrics": payload,
                **fields,
            }
        )
        return ErrorCode((await self.talker.ask(0, request)).error_code)


async def connect(scene: Scene) -> TelemetryTalker:
    return TelemetryTalker(await scene.connect(BROKER))


async def alter(talker: Talker, name: str, **configs: str | None) -> Any:
    request = m.IncrementalAlterConfigsRequest
    changes = [
        request.AlterableConfig(
            name=key.replace("_", "."), value=value, config_operation=DELETE if value is None else SET
        )
        for key, value in configs.items()
    ]
    resource = request.AlterConfigsResource(resource_type=CLIENT_METRICS, resource_name=name, configs=changes)
    return (await talker.ask(1, request(resources=[resource]))).responses[0]


def test_client_without_an_id_gets_one_and_the_default_subscription() -> None:
    async def script(scene: Scene) -> None:
        client = await connect(scene)
        response = await client.get()
        assert client.id not in client_instances.RESERVED_IDS
        assert (response.push_interval_ms, response.telemetry_max_bytes) == (60_000, 1 << 20)
        assert response.delta_temporality
        assert response.accepted_compression_types == (4, 3, 1, 2)
        assert any(SENT.startswith(each) for each in response.requested_metrics)
        again = TelemetryTalker(client.talker)
        await again.get()
        assert again.id != client.id

    on_broker(script)


def test_matching_resources_are_combined_and_change_the_subscription() -> None:
    async def script(scene: Scene) -> None:
        client = await connect(scene)
        assert (await client.get()).requested_metrics == ()
        first = client.subscription_id
        assert (
            await alter(client.talker, "a", metrics="x.,y.", interval_ms="7000", match="client_id=sc.*")
        ) is not None
        await alter(client.talker, "b", metrics="z.", interval_ms="500", match="client_id=other")
        response = await client.get()  # at once, because the subscriptions have changed
        assert (response.requested_metrics, response.push_interval_ms) == (("x.", "y."), 7000)
        assert client.subscription_id != first
        await alter(client.talker, "c", metrics="*", match="client_source_address=client,client_id=scene")
        assert (await client.get()).requested_metrics == ("*",)
        assert await client.push(subscription_id=first) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        assert (await client.get()).error_code == 0  # the error allows it before the interval is over
        await alter(client.talker, "c", metrics=None, match=None)
        assert (await client.get()).requested_metrics == ("x.", "y.")

    on_broker(script, settings=[NO_DEFAULT])


def test_software_of_the_client_selects_subscriptions() -> None:
    async def script(scene: Scene) -> None:
        client = await connect(scene)
        await client.talker.ask(
            3, m.ApiVersionsRequest(client_software_name="librdkafka", client_software_version="2.16.0")
        )
        match = r"client_software_name=librdkafka,client_software_version=2\.[0-9.]*"
        await alter(client.talker, "a", metrics="x.", match=match)
        await alter(client.talker, "b", metrics="y.", match="client_software_name=apache-kafka-java")
        assert (await client.get()).requested_metrics == ("x.",)
        unnamed = await connect(scene)
        assert (await unnamed.get()).requested_metrics == ()

    on_broker(script, settings=[NO_DEFAULT])


def test_requests_before_the_interval_are_throttled() -> None:
    async def script(scene: Scene) -> None:
        client = await connect(scene)
        assert (await client.get()).error_code == 0
        assert (await client.get()).error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert await client.push() == ErrorCode.NONE  # the first push comes early: clients add jitter
        assert await client.push() == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        await asyncio.sleep(1)
        assert await client.push() == ErrorCode.NONE
        assert await client.push(terminating=True) == ErrorCode.NONE
        assert await client.push(terminating=True) == ErrorCode.INVALID_REQUEST
        found = samples(await page_of(scene))
        assert found["kafka_server_client_metrics_throttle_total"] == 2

    on_broker(script, settings=[EVERY_SECOND])


@pytest.mark.parametrize(
    ("fields", "payload", "codec", "error"),
    [
        ({"client_instance_id": NO_ID}, b"", 0, ErrorCode.INVALID_REQUEST),
        ({"client_instance_id": bytes(15) + b"\1"}, b"", 0, ErrorCode.INVALID_REQUEST),
        ({"subscription_id": 77}, b"", 0, ErrorCode.UNKNOWN_SUBSCRIPTION_ID),
        ({}, b"", 5, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({}, bytes(5000), 0, ErrorCode.TELEMETRY_TOO_LARGE),
        ({}, compress(Compression.ZSTD, bytes(5000)), 4, ErrorCode.TELEMETRY_TOO_LARGE),
        ({}, b"no gzip", 1, ErrorCode.INVALID_RECORD),
        ({}, b"\xff", 0, ErrorCode.INVALID_RECORD),
    ],
)
def test_rejected_push_changes_no_metric(fields: dict[str, Any], payload: bytes, codec: int, error: ErrorCode) -> None:
    async def script(scene: Scene) -> None:
        client = await connect(scene)
        await client.get()
        assert await client.push(payload, codec, **fields) == error
        assert not any("kafka_client_" in each for each in samples(await page_of(scene)))

    on_broker(script, settings=["telemetry.max.bytes=4000"])


@pytest.mark.parametrize("codec", list(Compression))
def test_pushed_metrics_appear_on_the_metrics_page(codec: Compression) -> None:
    async def script(scene: Scene) -> None:
        client, other = await connect(scene), await connect(scene)
        await client.get()
        await other.get()
        pushed = payload_of(counter(SENT, 40), gauge(LATENCY, 3.5), gauge("moldau.bugs.total", 9))
        assert await client.push(compress(codec, pushed), codec) == ErrorCode.NONE
        assert await other.push(payload_of(counter(SENT, 2), gauge(LATENCY, 9))) == ErrorCode.NONE
        labels = '{user="ANONYMOUS",client_id="scene"}'
        found = samples(await page_of(scene))
        assert found[f"kafka_client_producer_record_send_total{labels}"] == 42
        assert found[f"kafka_client_producer_request_latency_avg{labels}"] == 9
        assert found["moldau_client_metrics_dropped_total"] == 1  # it was not requested
        assert found["kafka_server_client_metrics_instance_count"] == 2
        await asyncio.sleep(1)
        assert await client.push(payload_of(counter(SENT, 5))) == ErrorCode.NONE
        await asyncio.sleep(client_instances.EXPIRY_MS_MIN / 1000)  # the other client no longer pushes
        found = samples(await page_of(scene))
        assert found[f"kafka_client_producer_record_send_total{labels}"] == 47
        assert f"kafka_client_producer_request_latency_avg{labels}" not in found

    on_broker(script, settings=[EVERY_SECOND])


def test_values_of_nodes_and_topics_are_combined() -> None:
    async def script(scene: Scene) -> None:
        client = await connect(scene)
        await client.get()
        pushed = payload_of(
            gauge("a.send.rate", 1, 2, attributes=(NODE,)),
            gauge("a.latency.max", 7, 5, attributes=(NODE,)),
            gauge("a.latency.min", 7, 5, attributes=(NODE,)),
            gauge("a.with.total.rate", 4),
            gauge("a.with.total.rate", 3, attributes=(NODE,)),
        )
        assert await client.push(pushed) == ErrorCode.NONE
        page = await page_of(scene)
        labels = '{user="ANONYMOUS",client_id="scene"}'
        for name, value in (("send_rate", 3), ("latency_max", 7), ("latency_min", 5), ("with_total_rate", 4)):
            assert samples(page)[f"kafka_client_a_{name}{labels}"] == value

    on_broker(script, settings=["moldau.telemetry.default.metrics=*"])


def test_instances_names_and_gauges_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_instances, "INSTANCES_MAX", 3)
    monkeypatch.setattr(client_telemetry, "NAMES_PER_CLIENT_MAX", 4)
    monkeypatch.setattr(client_telemetry, "GAUGES_MAX", 10)

    async def script(scene: Scene) -> None:
        names = [gauge(f"x{number}", 1) for number in range(6)]
        for _ in range(5):
            client = await connect(scene)
            await client.get()
            assert await client.push(payload_of(*names)) == ErrorCode.NONE
        found = samples(await page_of(scene))
        telemetry = scene.node.broker.client_telemetry
        assert len(telemetry.instances) == 3
        assert sum(len(each.gauges) for each in telemetry.instances.values()) <= 10
        assert sum(each.startswith("kafka_client_") for each in found) == 4
        assert found["moldau_client_metrics_dropped_total"] >= 10

    on_broker(script, settings=["moldau.telemetry.default.metrics=*"])


@pytest.mark.parametrize(
    ("name", "configs", "error"),
    [
        ("", {"metrics": "*"}, ErrorCode.INVALID_REQUEST),
        ("a", {"metric": "*"}, ErrorCode.INVALID_REQUEST),
        ("a", {"interval_ms": "99"}, ErrorCode.INVALID_REQUEST),
        ("a", {"interval_ms": "3600001"}, ErrorCode.INVALID_REQUEST),
        ("a", {"interval_ms": "soon"}, ErrorCode.INVALID_CONFIG),
        ("a", {"match": "client_name=x"}, ErrorCode.INVALID_CONFIG),
        ("a", {"match": "client_id"}, ErrorCode.INVALID_CONFIG),
        ("a", {"match": "client_id=("}, ErrorCode.INVALID_CONFIG),
        ("a", {"match": "client_id=a=b"}, ErrorCode.INVALID_CONFIG),
    ],
)
def test_invalid_resource_is_rejected(name: str, configs: dict[str, str], error: ErrorCode) -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        assert (await alter(talker, name, **configs)).error_code == error
        assert not (await talker.ask(0, m.ListConfigResourcesRequest())).config_resources

    on_broker(script)


def test_resource_is_described_with_its_sources() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        assert (await alter(talker, "a", metrics="x.", interval_ms="1000")).error_code == 0
        await scene.restart_after_crash()
        talker = await scene.connect()
        describe = m.DescribeConfigsRequest

        async def described(name: str) -> Any:
            resource = describe.DescribeConfigsResource(
                resource_type=CLIENT_METRICS, resource_name=name, configuration_keys=None
            )
            return (await talker.ask(4, describe(resources=[resource]))).results[0]

        entries = {each.name: (each.value, each.config_source) for each in (await described("a")).configs}
        assert entries == {"metrics": ("x.", 7), "interval.ms": ("1000", 7), "match": ("", 5)}
        assert (await described("")).error_code == ErrorCode.INVALID_REQUEST

    on_broker(script)
