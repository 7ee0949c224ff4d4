"""The alerting rules and the dashboard of `moldau generate` in a real Prometheus, with a real broker."""

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml
from typer.testing import CliRunner

from moldau.broker.metrics import catalogue
from moldau.cli.main import app
from moldau.testing import Broker
from moldau.testing.free_ports import PortRange

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")

MINUTES: Final = 240
EVALUATED_AT: Final = "230m"
WAIT_S: Final = 60.0


def always(value: float) -> str:
    return f"{value}x{MINUTES}"


def rising(step: float, start: float = 0) -> str:
    return f"{start}{step:+}x{MINUTES}"


STALL: Final = catalogue.LOOP_STALL.name
LAG: Final = catalogue.GROUP_LAG.name + '{job="moldau",consumergroup="g",topic="t",partition="0"}'

HEALTHY: Final[Mapping[str, str]] = {
    "up": always(1),
    catalogue.ACTIVE_CONTROLLERS.name: always(1),
    catalogue.OFFLINE.name: always(0),
    catalogue.FENCED_BROKERS.name: always(0),
    catalogue.UNDER_MIN_ISR.name: always(0),
    catalogue.UNDER_REPLICATED.name: always(0),
    catalogue.OFFLINE_REPLICAS.name: always(0),
    catalogue.IMBALANCE.name: always(0),
    catalogue.OFFLINE_LOG_DIRS.name: always(0),
    catalogue.DISK_FREE.name: always(90),
    catalogue.DISK_TOTAL.name: always(200),
    catalogue.DISK_ERRORS.name: always(3),
    catalogue.CORRUPT_RANGES.name: always(3),
    catalogue.BUGS.name: always(3),
    catalogue.REJECTED_CONNECTIONS.name: always(3),
    catalogue.OLDEST_TRANSACTION.name: always(1000),
    f'{STALL}_bucket{{job="moldau",instance="a",le="0.1"}}': rising(100),
    f'{STALL}_bucket{{job="moldau",instance="a",le="1"}}': rising(100),
    f'{STALL}_bucket{{job="moldau",instance="a",le="+Inf"}}': rising(100),
    LAG: always(1_000_000),
}

# What makes each rule, and no other, fire.
FAULTS: Final[Mapping[str, Mapping[str, str]]] = {
    "MoldauTargetDown": {"up": always(0)},
    "MoldauActiveControllers": {catalogue.ACTIVE_CONTROLLERS.name: always(0)},
    "MoldauOfflinePartitions": {catalogue.OFFLINE.name: always(2)},
    "MoldauFencedBrokers": {catalogue.FENCED_BROKERS.name: always(1)},
    "MoldauPartitionsBelowMinIsr": {catalogue.UNDER_MIN_ISR.name: always(1)},
    "MoldauUnderReplicatedPartitions": {catalogue.UNDER_REPLICATED.name: always(1)},
    "MoldauOfflineReplicas": {catalogue.OFFLINE_REPLICAS.name: always(1)},
    "MoldauLeaderImbalance": {catalogue.IMBALANCE.name: always(1)},
    "MoldauLogDirOffline": {catalogue.OFFLINE_LOG_DIRS.name: always(1)},
    "MoldauDiskAlmostFull": {catalogue.DISK_FREE.name: always(19)},
    "MoldauDiskFullWithinADay": {catalogue.DISK_FREE.name: rising(-0.1, start=90)},
    "MoldauDiskErrors": {catalogue.DISK_ERRORS.name: rising(1)},
    "MoldauCorruptRecords": {catalogue.CORRUPT_RANGES.name: rising(1)},
    "MoldauBugs": {catalogue.BUGS.name: rising(1)},
    "MoldauEventLoopStalls": {f'{STALL}_bucket{{job="moldau",instance="a",le="0.1"}}': rising(50)},
    "MoldauConnectionsRejected": {catalogue.REJECTED_CONNECTIONS.name: rising(1)},
    "MoldauStuckTransaction": {catalogue.OLDEST_TRANSACTION.name: always(1_300_000)},
    "MoldauConsumerLagGrowing": {LAG: rising(100, start=20_000)},
}


def generate(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["generate", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "alerts.yml"
    path.write_text(generate("alerts"))
    return path


def case(fault: Mapping[str, str], fired: list[str]) -> dict[str, Any]:
    """Return a test of promtool: these and no other alerts fire in a cluster that is healthy but for the fault."""
    series = {**HEALTHY, **fault}
    named = {name if "{" in name else f'{name}{{job="moldau",instance="a"}}': values for name, values in series.items()}
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in named.items()],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": EVALUATED_AT,
                "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in fired],
            }
        ],
    }


def promtool(*arguments: str) -> str:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_each_rule_fires_for_its_fault_alone(rules: Path, tmp_path: Path) -> None:
    written = yaml.safe_load(rules.read_text())["groups"][0]["rules"]
    assert sorted(each["alert"] for each in written) == sorted(FAULTS)
    assert "SUCCESS" in promtool("check", "rules", str(rules))
    cases = [case({}, []), *(case(fault, [name]) for name, fault in FAULTS.items())]
    path = tmp_path / "tests.yml"
    path.write_text(yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": cases}))
    assert "SUCCESS" in promtool("test", "rules", str(path))


@pytest.fixture
def query(rules: Path, tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    """Run Prometheus on a broker, and return a function that evaluates an expression."""
    ports = PortRange()
    (port,) = ports.draw(1)
    with Broker() as broker, (tmp_path / "log").open("w") as log:
        assert broker.metrics is not None
        target = broker.metrics.removeprefix("http://").removesuffix("/metrics")
        scrape = {"job_name": "moldau", "scrape_interval": "1s", "static_configs": [{"targets": [target]}]}
        config = tmp_path / "prometheus.yml"
        config.write_text(yaml.safe_dump({"rule_files": [str(rules)], "scrape_configs": [scrape]}))
        promtool("check", "config", str(config))
        listen = f"127.0.0.1:{port}"
        arguments = (f"--config.file={config}", f"--storage.tsdb.path={tmp_path}", f"--web.listen-address={listen}")
        with subprocess.Popen(["prometheus", *arguments], stderr=log) as prometheus:

            def evaluate(expression: str) -> Any:
                with urlopen(
                    f"http://{listen}/api/v1/query?{urlencode({'query': expression})}", timeout=10
                ) as response:
                    return json.load(response)["data"]["result"]

            try:
                CliRunner().invoke(app, ["produce", "clicks", "-b", broker.bootstrap_servers], input="a\nb\n")
                yield evaluate
            finally:
                prometheus.terminate()
    ports.release()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            if condition():
                return
        except OSError:  # Prometheus starts
            pass
        assert time.monotonic() < deadline
        time.sleep(0.2)  # between requests to Prometheus, which scrapes every second


def test_dashboard_shows_a_broker_and_no_alert_is_pending(query: Callable[[str], Any]) -> None:
    counted = f'count_over_time({catalogue.MESSAGES_IN.name}{{topic="clicks"}}[1m])'
    until(lambda: bool(found := query(counted)) and float(found[0]["value"][1]) >= 5)
    chosen = {"$job": "moldau", "$instance": ".*", "$topic": ".*", "$__rate_interval": "1m"}
    empty = []
    for panel in json.loads(generate("grafana"))["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            for variable, value in chosen.items():
                expression = expression.replace(variable, value)
            if not query(expression):
                empty.append(panel["title"])
    assert empty == ["Lag", "Committed records"], "there is no consumer group"
    assert query("ALERTS") == []
