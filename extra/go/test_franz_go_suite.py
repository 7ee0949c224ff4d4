"""franz-go's own integration tests: groups of all types, transactions, share groups, against a cluster and over TLS."""

import os
import re
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from moldau.testing import Broker, Cluster

HERE: Final = Path(__file__).parent
SUITE: Final = HERE / "bin/kgo.test"
EXPECTED: Final = tomllib.loads((HERE / "suite_expected.toml").read_text())
OUTCOME: Final = re.compile(r"^--- (PASS|FAIL|SKIP): (\S+) ", re.MULTILINE)
SUITE_S_MAX: Final = 600
TESTS_MIN: Final = 100  # unit tests included
BROKER_SETTINGS: Final = {
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
    "share.coordinator.state.topic.num.partitions": 4,
}


def outcomes(environment: Mapping[str, str], *options: str) -> dict[str, set[str]]:
    """Run the suite; return the names of its tests by outcome."""
    sources = subprocess.run(
        ["go", "list", "-m", "-f", "{{.Dir}}", "github.com/twmb/franz-go"],
        cwd=HERE / "suite",
        capture_output=True,
        text=True,
        check=True,
    )
    done = subprocess.run(
        [str(SUITE), "-test.v", f"-test.timeout={SUITE_S_MAX}s", *options],
        cwd=Path(sources.stdout.strip()) / "pkg/kgo",  # a test reads the sources
        env={
            **os.environ,
            "KGO_TEST_RECORDS": "20000",
            "KGO_TEST_MAX_TOPIC_PARTS": "8",
            "KGO_LOG_LEVEL": "none",
            **environment,
        },
        capture_output=True,
        text=True,
        errors="replace",
        timeout=SUITE_S_MAX + 30,
        check=False,
    )
    found: dict[str, set[str]] = {"PASS": set(), "FAIL": set(), "SKIP": set()}
    for outcome, name in OUTCOME.findall(done.stdout):
        found[outcome].add(name)
    assert found["PASS"], done.stdout[-4000:] + done.stderr[-4000:]
    unexpected = found["FAIL"] - set(EXPECTED["flaky"])
    assert not unexpected, "\n".join([*sorted(unexpected), failures(done.stdout)])
    return found


def failures(output: str) -> str:
    """Return the lines around each failure."""
    lines = output.splitlines()
    return "\n".join("\n".join(lines[max(at - 12, 0) : at + 1]) for at, line in enumerate(lines) if "--- FAIL" in line)


@pytest.mark.timeout(SUITE_S_MAX + 60)
def test_suite_passes_on_a_cluster() -> None:
    with Cluster(brokers=3, settings=BROKER_SETTINGS) as cluster:
        found = outcomes({"KGO_SEEDS": cluster.bootstrap_servers, "KGO_TEST_RF": "3"})
    assert found["SKIP"] == set(EXPECTED["skipped"])
    assert len(found["PASS"]) > TESTS_MIN


@pytest.mark.timeout(SUITE_S_MAX + 60)
def test_suite_passes_over_tls_with_client_certificates() -> None:
    with Broker(security="mtls", settings=BROKER_SETTINGS) as broker:
        client = broker.librdkafka_settings
        names = {"ca": "ssl.ca.location", "cert": "ssl.certificate.location", "key": "ssl.key.location"}
        files = ",".join(f"{kind}:{client[name]}" for kind, name in names.items())
        environment = {"KGO_SEEDS": broker.bootstrap_servers, "KGO_TEST_RF": "1", "KGO_TEST_TLS": files}
        found = outcomes(environment, f"-test.skip={'|'.join(EXPECTED['not_over_tls'])}")
    assert len(found["PASS"]) > TESTS_MIN
