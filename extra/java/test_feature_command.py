"""Kafka's feature tool against Moldau and against Apache Kafka."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import pytest
from apache_kafka import ApacheKafka, has_java
from test_secured_commands import Tools

from moldau.testing import Broker

pytestmark = [pytest.mark.skipif(not has_java, reason="needs java and `mvn package`"), pytest.mark.timeout(120)]

FEATURES: Final = "org.apache.kafka.tools.FeatureCommand"
UNSERVED: Final = "streams.version"
LINE: Final = re.compile(
    r"Feature: (\S+)\s+SupportedMinVersion: (\S+)\s+SupportedMaxVersion: (\S+)\s+Fin.*: (\S+)\s+Ep"
)
KAFKA_SAYS: Final = "The update failed for all features since the following feature had an error: "
CONTROLLER: Final = re.compile(r"controller \d+")


class Both(NamedTuple):
    """A broker of Moldau and one of Apache Kafka, whose cluster is of release 4.0."""

    tools: Tools
    moldau: str
    kafka: str

    def same(self, *options: str, code: int = 0) -> list[str]:
        """Run a command on both; return the common output. The exit code must be `code`."""
        ours, theirs = (self.run(each, *options) for each in (self.moldau, self.kafka))
        assert ours == theirs
        assert ours[0] == code, ours[1]
        return ours[1]

    def run(self, servers: str, *options: str) -> tuple[int, list[str]]:
        code, lines = self.tools.run(FEATURES, "--bootstrap-server", servers, *options)
        return code, [CONTROLLER.sub("controller", line.replace(KAFKA_SAYS, "")) for line in lines]

    def described(self, servers: str) -> dict[str, tuple[str, str, str]]:
        """The lowest and the highest supported level of each feature, and the finalized one."""
        code, lines = self.run(servers, "describe")
        found = [LINE.match(line) for line in lines]
        assert code == 0, lines
        return {each[1]: (each[2], each[3], each[4]) for each in found if each}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("features")
    with Broker() as broker, ApacheKafka(folder / "kafka") as kafka, Tools() as tools:
        yield Both(tools, broker.bootstrap_servers, kafka.bootstrap_servers)


def test_upgrade_to_a_release_reports_the_feature_that_is_not_served(both: Both) -> None:
    """All other features are upgraded, and are then described as by Apache Kafka."""
    assert both.described(both.moldau)["metadata.version"] == ("3.7-IV4", "4.3-IV0", "4.0-IV3")
    for options in (["--dry-run"], []):
        code, lines = both.run(both.moldau, "upgrade", "--release-version", "4.3", *options)
        assert code == 1
        assert all(f"Not supported by this version: {UNSERVED}. Updated features: " in line for line in lines[:-1])
        level = both.described(both.moldau)["metadata.version"][2]
        assert level == ("4.0-IV3" if options else "4.3-IV0")
    code, lines = both.run(both.kafka, "upgrade", "--release-version", "4.3")
    assert code == 0, lines
    ours, theirs = both.described(both.moldau), both.described(both.kafka)
    assert theirs.pop(UNSERVED) == ("0", "1", "1")
    assert ours["metadata.version"][1:] == theirs["metadata.version"][1:]
    assert theirs.pop("metadata.version")[0] < ours.pop("metadata.version")[0], "Moldau starts at a later one"
    assert ours == theirs


def test_single_features_are_changed_as_in_kafka(both: Both) -> None:
    assert "was downgraded to 1" in both.same("downgrade", "--feature", "transaction.version=1")[0]
    assert "was upgraded to 2" in both.same("upgrade", "--feature", "transaction.version=2")[0]
    assert "can be disabled" in both.same("disable", "--dry-run", "--feature", "share.version")[0]
    assert "only supports versions 0-2" in both.same("upgrade", "--feature", "transaction.version=9", code=1)[0]
    assert "does not support" in both.same("upgrade", "--feature", "no.such=1", code=1)[0]
    assert "SAFE_DOWNGRADE" in both.same("upgrade", "--feature", "group.version=0", code=1)[0]
    assert "requires:" in both.same("feature-dependencies", "--feature", "eligible.leader.replicas.version=1")[0]
    assert f"{UNSERVED}=1" in both.same("version-mapping", "--release-version", "4.3")
