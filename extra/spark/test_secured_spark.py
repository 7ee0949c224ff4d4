"""Source, sink, `moldau sql`, pipelines and `moldau.connect` with SCRAM over TLS, and with certificates of clients."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import moldau
from moldau.broker.authorizer import STANDARD_AUTHORIZER
from moldau.cli.client_options import use_client_settings
from moldau.cli.files import write_private
from moldau.cli.main import app
from moldau.node.properties import format_properties
from moldau.testing.broker import Broker
from moldau.testing.security import PASSWORD
from moldau_dev.spark import until_done

ROWS = [("a", "1"), ("b", "2"), ("c", "3")]
COMMITTED = {"kafka.isolation.level": "read_committed"}


@pytest.fixture(scope="module", params=["scram", "mtls"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker(security=request.param, authorizer_class_name=STANDARD_AUTHORIZER) as broker:
        yield broker


@pytest.fixture(scope="module")
def config(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of client settings."""
    path = tmp_path_factory.mktemp("config") / "client.properties"
    write_private(path, format_properties({"bootstrap.servers": broker.bootstrap_servers, **broker.client_settings}))
    return str(path)


def options(broker: Broker, **more: object) -> dict[str, str]:
    """Options of `format("moldau")`; in the names of further ones, `__` stands for a dot."""
    settings = {"bootstrap.servers": broker.bootstrap_servers, **broker.client_settings}
    given = {f"kafka.{name}": value for name, value in settings.items()}
    return given | {name.replace("__", "."): str(value) for name, value in more.items()}


def rows_of(spark: Any, broker: Broker, topic: str, fetcher: str) -> list[tuple[str, str]]:
    given = options(broker, subscribe=topic, fetcher=fetcher) | COMMITTED
    frame = spark.read.format("moldau").options(**given).load()
    return sorted((row.key, row.value) for row in frame.selectExpr("string(key)", "string(value)").collect())


def run(*words: str) -> str:
    result = CliRunner().invoke(app, words)
    use_client_settings({})
    assert result.exit_code == 0, f"{result.output}{result.exception!r}"
    return result.stdout


@pytest.mark.parametrize("sender", ["raw", "librdkafka"])
def test_every_transport_of_the_sink_and_of_the_source(spark: Any, broker: Broker, sender: str, tmp_path: Path) -> None:
    """Exactly once, with markers; and at least once."""
    source, target = (broker.create_topic(f"{sender}-{each}", partitions=2) for each in ("in", "out"))
    frame = spark.createDataFrame(ROWS, "key string, value string")
    once = options(broker, topic=source, sender=sender, deliveryGuarantee="at-least-once")
    frame.write.format("moldau").options(**once).mode("append").save()
    stream = spark.readStream.format("moldau").options(**options(broker, subscribe=source, startingOffsets="earliest"))
    exactly = options(
        broker,
        topic=target,
        sender=sender,
        checkpointLocation=tmp_path / "checkpoint",
        deliveryGuarantee="exactly-once",
    )
    until_done(stream.load().select("key", "value").writeStream.format("moldau").options(**exactly))
    for fetcher in ("raw", "librdkafka"):
        assert rows_of(spark, broker, source, fetcher) == ROWS
        assert rows_of(spark, broker, target, fetcher) == ROWS
    until_done(stream.load().select("key", "value").writeStream.format("moldau").options(**exactly))  # by its markers
    assert rows_of(spark, broker, target, "raw") == ROWS
    assert not secrets_in("", tmp_path)


def test_plans_hide_passwords(spark: Any, broker: Broker) -> None:
    topic = broker.create_topic("planned")
    frame = spark.read.format("moldau").options(**options(broker, subscribe=topic)).load()
    plan = frame._jdf.queryExecution()
    assert PASSWORD not in plan.toString()
    assert PASSWORD not in plan.analyzed().toJSON()
    with pytest.raises(Exception, match="no_such_column") as failed:
        frame.select("no_such_column")
    assert PASSWORD not in str(failed.value)


def test_sql_and_pipelines_with_a_file_of_settings(spark: Any, broker: Broker, config: str, tmp_path: Path) -> None:
    del spark
    topic, copied = (broker.create_topic(f"pipeline-{each}") for each in ("in", "out"))
    restored, archive = "pipeline-restored", str(tmp_path / "archive")
    with moldau.connect(broker.bootstrap_servers, **renamed(broker)) as connection:
        for number in range(3):
            connection.publish(topic, {"number": number})
    given = ("--command-config", config, "--master", "local[2]")
    selected = run("sql", f"select number from `{topic}` order by number", "--json", *given)
    assert [json.loads(line)["number"] for line in selected.splitlines()] == [0, 1, 2]
    there = (*given, "--folder", str(tmp_path / "pipelines"))
    run("pipeline", "run", "transform", "-t", topic, "--to", copied, "--once", *there)
    run("pipeline", "run", "archive", "-t", copied, "--to", archive, "--once", *there)
    run("pipeline", "run", "restore", "--archive", f"{archive}/{copied}", "--to", restored, "--verify", *there)
    with moldau.connect(broker.bootstrap_servers, **renamed(broker)) as connection:
        found = [message.json()["number"] for message in connection.consume(restored, idle_s=3)]
    assert sorted(found) == [0, 1, 2]
    assert not secrets_in("", tmp_path)


def renamed(broker: Broker) -> dict[str, Any]:
    return {name.replace(".", "_"): value for name, value in broker.librdkafka_settings.items()}


def secrets_in(shown: Any, folder: Path) -> list[str]:
    """The places, among what was shown and the files below a folder, that hold the password."""
    files = [str(each) for each in folder.rglob("*") if each.is_file() and PASSWORD.encode() in each.read_bytes()]
    return [*files, *(["shown"] if PASSWORD in str(shown) else [])]
