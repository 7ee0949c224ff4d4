"""Prometheus metrics: their names, kinds and values."""

import asyncio
import errno
import re
from base64 import b64encode

import pytest
from broker_scene import Scene, batch, fetch, on_broker, produce

from moldau.broker.metrics import catalogue
from moldau.broker.metrics.catalogue import CATALOGUE
from moldau.broker.metrics.endpoint import MetricsEndpoint
from moldau.broker.metrics.prometheus_text import histogram
from moldau.broker.network.connection_limits import ConnectionLimits
from moldau.broker.runtime.meters import LatencyMeter
from moldau.model.errors import InvalidConfig
from moldau.model.ports import PageRequest
from moldau.node.configuration import load_configuration
from moldau.node.ports.process import process_lines

pytestmark = pytest.mark.proves("O1")

SAMPLE = re.compile(r'^[a-z0-9_]+(\{([a-z_]+="[^"]*",?)*\})? -?[0-9.e+-]+$')


def samples(page: str) -> dict[str, float]:
    lines = [line for line in page.splitlines() if not line.startswith("#")]
    assert all(SAMPLE.match(line) for line in lines), [line for line in lines if not SAMPLE.match(line)]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


async def page_of(scene: Scene) -> str:
    limits = ConnectionLimits(scene.node.broker.clock, lambda: scene.node.broker.settings)
    status, content_type, body = await MetricsEndpoint(
        scene.node.broker, list(scene.node.routers.broker.apis.values()), limits, process_lines
    ).page("/metrics")
    assert status == 200
    assert content_type.startswith("text/plain; version=0.0.4")
    return body.decode()


def test_traffic_logs_and_requests_are_counted() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("clicks", 2)
        talker = await scene.connect()
        records = batch(b"a", b"b", b"c")
        await produce(talker, "clicks", records)
        await fetch(talker, "clicks", 0)
        await produce(talker, "nowhere", batch(b"x"))
        await fetch(talker, "nowhere", 0)
        await fetch(talker, "clicks", 99)
        found = samples(await page_of(scene))
        assert found['kafka_server_brokertopicmetrics_messagesin_total{topic="clicks"}'] == 3
        assert found["kafka_server_brokertopicmetrics_messagesin_total"] == 3
        assert found['kafka_server_brokertopicmetrics_bytesin_total{topic="clicks"}'] == len(records)
        assert found['kafka_server_brokertopicmetrics_bytesout_total{topic="clicks"}'] == len(records)
        assert found["kafka_server_brokertopicmetrics_failedproducerequests_total"] == 1
        assert found["kafka_server_brokertopicmetrics_totalproducerequests_total"] == 2
        assert found['kafka_server_brokertopicmetrics_totalproducerequests_total{topic="clicks"}'] == 1
        assert found["kafka_server_brokertopicmetrics_failedfetchrequests_total"] == 2
        assert found["kafka_server_brokertopicmetrics_totalfetchrequests_total"] == 3
        assert found['kafka_server_brokertopicmetrics_totalfetchrequests_total{topic="clicks"}'] == 2
        assert found['kafka_network_requestmetrics_requests_total{request="Produce"}'] == 2
        assert found['kafka_network_requestmetrics_totaltimems_count{request="Produce"}'] == 2
        assert found['kafka_log_log_logendoffset{topic="clicks",partition="0"}'] == 3
        assert found['kafka_log_log_size{topic="clicks",partition="0"}'] == len(records)
        assert found['kafka_log_log_numlogsegments{topic="clicks",partition="1"}'] == 1
        assert found["kafka_server_replicamanager_partitioncount"] == 2
        assert found["moldau_bugs_total"] == 0
        assert found["process_resident_memory_bytes"] > 1_000_000

    on_broker(script)


def test_every_catalogued_metric_is_exported_with_its_kind() -> None:
    async def script(scene: Scene) -> None:
        page = await page_of(scene)
        for metric in CATALOGUE:
            assert f"# TYPE {metric.name} {metric.kind}\n" in page

    on_broker(script)


def test_single_node_leads_all_partitions_and_is_the_active_controller() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("clicks", 3)
        found = samples(await page_of(scene))
        names = ("leadercount", "underreplicatedpartitions", "underminisrpartitioncount", "atminisrpartitioncount")
        assert [found[f"kafka_server_replicamanager_{name}"] for name in names] == [3, 0, 0, 3]
        assert found["kafka_server_replicamanager_offlinereplicacount"] == 0
        control = ("activecontrollercount", "offlinepartitionscount", "preferredreplicaimbalancecount")
        assert [found[f"kafka_controller_kafkacontroller_{name}"] for name in control] == [1, 0, 0]
        assert found['kafka_server_raft_metrics_current_state{state="leader"}'] == 1
        assert found["kafka_server_raft_metrics_number_of_voters"] == 1
        assert found["kafka_server_raft_metrics_high_watermark"] == found["kafka_server_raft_metrics_log_end_offset"]
        known = ("globaltopiccount", "globalpartitioncount", "activebrokercount", "fencedbrokercount")
        assert [found[f"kafka_controller_kafkacontroller_{name}"] for name in known] == [1, 3, 1, 0]

    on_broker(script)


def test_totals_do_not_decrease_when_a_topic_is_deleted() -> None:
    async def script(scene: Scene) -> None:
        from moldau.wire.messages import DeleteTopicsRequest

        await scene.create("t")
        talker = await scene.connect()
        await produce(talker, "t", batch(b"a"))
        await talker.ask(5, DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000))
        found = samples(await page_of(scene))
        assert found["kafka_server_brokertopicmetrics_messagesin_total"] == 1

    on_broker(script)


def test_health_path_responds_and_unknown_paths_are_not_found() -> None:
    async def script(scene: Scene) -> None:
        pages = MetricsEndpoint(scene.node.broker, [], scene.node._listeners.limits)
        assert (await pages.page("/health"))[0] == 200
        assert (await pages.page("/else"))[0] == 404

    on_broker(script)


def test_readiness_path_names_the_cause_while_the_log_dir_is_offline() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        pages = MetricsEndpoint(scene.node.broker, [], scene.node._listeners.limits)
        assert (await pages.page("/health/ready"))[::2] == (200, b"ok\n")
        scene.simulation.disks_fail = True
        scene.host.disk.write_error = errno.EROFS
        await produce(await scene.connect(), "t", batch(b"a"))
        status, _, body = await pages.page("/health/ready")
        assert (status, body.startswith(b"log dir /data is offline: Read-only file system")) == (503, True)
        assert (await pages.page("/health"))[0] == 200
        scene.host.disk.write_error = 0
        await asyncio.sleep(10)
        assert (await pages.page("/health/ready"))[0] == 200

    on_broker(script)


def test_quantiles_are_upper_bounds_within_a_factor_of_two() -> None:
    meter = LatencyMeter()
    for number in range(1, 1001):
        meter.finished(number / 10)
    assert 50 <= meter.quantile_ms(0.5) <= 100
    assert 99 <= meter.quantile_ms(0.99) <= 200
    assert meter.quantile_ms(1.0) == meter.longest_ms == 100
    assert LatencyMeter().quantile_ms(0.99) == 0


@pytest.mark.proves("O1", part="broker")
def test_histogram_buckets_exist_before_the_first_observation() -> None:
    """Prometheus does not count the first value that it sees of a bucket as an increase."""

    def buckets(meter: LatencyMeter) -> list[str]:
        return [line.split()[0] for line in list(histogram(catalogue.LOOP_STALL, meter))[1:]]

    meter = LatencyMeter()
    before = buckets(meter)
    meter.finished(700.0)
    assert buckets(meter) == before
    assert 'moldau_loop_stall_seconds_bucket{le="1.048576"}' in before


TOKEN = "0123456789abcdef"


@pytest.mark.parametrize(
    ("path", "authorization", "status"),
    [
        ("/metrics", f"Bearer {TOKEN}", 200),
        ("/metrics", f"bearer  {TOKEN}", 200),
        ("/metrics", "Basic " + b64encode(f"prometheus:{TOKEN}".encode()).decode(), 200),
        ("/metrics", "Basic " + b64encode(f"{TOKEN}:".encode()).decode(), 401),
        ("/metrics", "Basic not base64", 401),
        ("/metrics", f"Bearer {TOKEN}0", 401),
        ("/metrics", f"Bearer {TOKEN[:-1]}", 401),
        ("/metrics", "Bearer \xff", 401),
        ("/metrics", TOKEN, 401),
        ("/metrics", "", 401),
        ("/health/ready", "", 401),
        ("/else", "", 401),
        ("/health", "", 200),
    ],
)
def test_pages_require_the_token(path: str, authorization: str, status: int) -> None:
    async def script(scene: Scene) -> None:
        limits = ConnectionLimits(scene.node.broker.clock, lambda: scene.node.broker.settings)
        pages = MetricsEndpoint(scene.node.broker, [], limits)
        assert (await pages.serve(PageRequest(path, authorization)))[0] == status

    on_broker(script, settings=[f"moldau.metrics.token={TOKEN}"])


def test_short_token_is_rejected() -> None:
    with pytest.raises(InvalidConfig, match=r"\[hidden\].*16"):
        load_configuration(overrides=["moldau.metrics.token=short"])


def test_metrics_by_tls_need_a_certificate() -> None:
    with pytest.raises(InvalidConfig, match=r"ssl\.keystore\.location"):
        load_configuration(overrides=["moldau.metrics.security.protocol=SSL"])
