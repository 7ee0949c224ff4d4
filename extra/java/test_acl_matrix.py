"""Every API under every ACL of one user: Moldau and Apache Kafka deny the same requests and hide the same names.

What differs is listed with its reason in `acl_differences.toml`, from which the reference page takes it.
"""

import tomllib
from collections.abc import Iterator
from contextlib import closing
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

import pytest
from acl_matrix import BrokerUnderAcls, cases, comparable, denials, scenarios, settings, visible
from apache_kafka import ApacheKafka, free_ports, has_java
from protocol_requests import OWN, differences

from moldau.broker.handlers.authorization import RULES
from moldau.broker.handlers.table import served_apis
from moldau.testing import Broker

pytestmark = [pytest.mark.skipif(not has_java, reason="needs java and `mvn package`"), pytest.mark.timeout(1800)]

DIFFERENCES: Final = tomllib.loads((Path(__file__).parent / "acl_differences.toml").read_text())["difference"]
WITHOUT: Final = OWN | {"log_dir", "total_bytes", "usable_bytes", "controller_id", "brokers", "node_endpoints"}


@pytest.fixture(scope="module")
def ours() -> Iterator[BrokerUnderAcls]:
    ports = free_ports(3)
    with Broker(listen=None, settings=settings(ports)), closing(BrokerUnderAcls(ports)) as broker:
        yield broker


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerUnderAcls]:
    ports = free_ports(3)
    kafka = ApacheKafka(tmp_path_factory.mktemp("kafka") / "data", "4.3", settings(ports))
    kafka.port = ports[0]
    with kafka, closing(BrokerUnderAcls(ports)) as broker:
        yield broker


def problems(where: str, own: Any, expected: Any) -> list[str]:
    """The differences: the denials with everything else in such responses, and the names that the client sees."""
    found = []
    if denials(own) or denials(expected):
        found = differences(comparable(own, WITHOUT), comparable(expected, WITHOUT))
    if visible(own) != visible(expected):
        found.append(f"names: we show {visible(own)}, Kafka {visible(expected)}")
    return [f"{where}: {each}" for each in found]


def is_explained(problem: str) -> bool:
    return any(fnmatch(problem, each["pattern"]) for each in DIFFERENCES)


def test_every_api_denies_and_hides_what_kafka_does(ours: BrokerUnderAcls, theirs: BrokerUnderAcls) -> None:
    found = []
    for name, acls in scenarios():
        for broker in (ours, theirs):
            broker.choose(acls)
            broker.prepare()
        for tested in cases():
            found += problems(f"{name}: {tested}", ours.response(tested), theirs.response(tested))
    unexplained = [each for each in found if not is_explained(each)]
    assert not unexplained, "\n".join(["", *unexplained])
    unused = [each["pattern"] for each in DIFFERENCES if not any(fnmatch(one, each["pattern"]) for one in found)]
    assert not unused, f"no longer true: {unused}"


def test_matrix_has_every_api() -> None:
    of_login = {"SaslHandshake", "SaslAuthenticate"}  # with which every connection starts
    tested = {each.api for each in cases()} | of_login
    assert {api.name for api in served_apis()} <= tested
    assert tested <= RULES.keys()
