"""`aggregate` and `dedupe` without Spark: fields, invalid options, and ejected scripts."""

import uuid
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from moldau.cli.main import app
from moldau.pipelines.fields import field_of, span_of
from moldau.pipelines.flow import SqlStep
from moldau.pipelines.presets import Aggregate, ChangesSink, Dedupe, Figure
from moldau.pipelines.requirements import PipelineError
from moldau.testing.broker import Broker

TIME = field_of("timestamp", "--time")


@pytest.mark.proves("D3", part="aggregate and dedupe")
@pytest.mark.parametrize(
    ("text", "name", "sql"),
    [
        ("page", "page", "get_json_object(cast(value as string), \"$['page']\")"),
        ("user.id", "user.id", "get_json_object(cast(value as string), \"$['user']['id']\")"),
        ("key", "key", "cast(key as string)"),
        ("_key", "key", "cast(key as string)"),
        ("value.key", "key", "get_json_object(cast(value as string), \"$['key']\")"),
        ("_partition", "partition", "cast(partition as string)"),
    ],
)
def test_field_is_read_from_the_value_or_the_record(text: str, name: str, sql: str) -> None:
    field = field_of(text, "--by")
    assert (field.name, field.text) == (name, sql)


@pytest.mark.proves("D3", part="aggregate and dedupe")
@pytest.mark.parametrize("text", ["", "a b", "a'; drop", "1st", "a..b", "a`b", '"'])
def test_invalid_field_name_is_rejected(text: str) -> None:
    with pytest.raises(PipelineError, match="is not a field name"):
        field_of(text, "--by")


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("1 minute", "1 minutes"),
        ("10 Minutes", "10 minutes"),
        ("90s", "90 seconds"),
        ("5m", "5 minutes"),
        ("2 h", "2 hours"),
        ("500ms", "500 milliseconds"),
        ("1 week", "1 weeks"),
        ("3d", "3 days"),
    ],
)
def test_durations_have_long_and_short_forms(text: str, span: str) -> None:
    assert span_of(text, "--window") == span


@pytest.mark.parametrize("text", ["", "minute", "0 seconds", "-1 minute", "1 fortnight", "1 minute 5 seconds", "1'"])
def test_invalid_duration_is_rejected(text: str) -> None:
    with pytest.raises(PipelineError, match="is not a duration; write 10 seconds"):
        span_of(text, "--window")


@pytest.mark.proves("D3", part="aggregate and dedupe")
def test_duplicate_column_names_are_rejected() -> None:
    with pytest.raises(PipelineError, match="same name: count"):
        Aggregate(by=[field_of("count", "--by")], window="1 minutes", time=TIME, lateness="1 minutes")
    with pytest.raises(PipelineError, match="same name: key"):
        Aggregate(
            by=[field_of("key", "--by"), field_of("value.key", "--by")],
            window="1 minutes",
            time=TIME,
            lateness="1 days",
        )


@pytest.mark.proves("D3", part="aggregate and dedupe")
def test_column_names_that_differ_in_case_only_are_rejected() -> None:
    with pytest.raises(PipelineError, match="two result columns would have the same name: Page, page"):
        Aggregate(
            by=[field_of("page", "--by"), field_of("Page", "--by")],
            window="1 minutes",
            time=TIME,
            lateness="1 days",
        )
    with pytest.raises(PipelineError, match="same name: Count, count"):
        Aggregate(by=[field_of("Count", "--by")], window="1 minutes", time=TIME, lateness="1 minutes")


def test_aggregates_are_named_after_their_field() -> None:
    assert Figure("count").name == "count"
    assert Figure("sum", field_of("order.total", "--sum")).name == "sum_order.total"


@pytest.mark.proves("D3", part="aggregate and dedupe")
def test_records_without_a_key_are_never_duplicates() -> None:
    first = Dedupe(key=[field_of("id", "--key")], lateness="1 minutes").steps()[0]
    assert isinstance(first, SqlStep)
    assert "concat('#', concat_ws('/', topic, partition, offset))" in first.text
    assert "current_timestamp() as _time" in first.text


@pytest.mark.proves("D3", part="aggregate and dedupe")
def test_binary_keys_are_compared_by_their_bytes() -> None:
    keys = [field_of(each, "--key") for each in ("key", "value.key", "partition")]
    assert [each.identity for each in keys] == ["hex(key)", keys[1].text, keys[2].text]
    first = Dedupe(key=keys, lateness="1 minutes").steps()[0]
    assert isinstance(first, SqlStep)
    assert f"to_json(array(hex(key), {keys[1].text}, {keys[2].text}))" in first.text


def test_updates_are_written_with_the_id_of_their_batch() -> None:
    code = ChangesSink(bootstrap_servers="here:9092", topic="out").code(is_bounded=False)
    compile(code, "script", "exec")
    assert 'outputMode("update")' in code
    assert '.option("txnAppId", query).option("txnVersion", batch)' in code
    assert "foreachBatch" not in ChangesSink(bootstrap_servers="here:9092", topic="out").code(is_bounded=True)


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOLDAU_PIPELINES", str(tmp_path / "pipelines"))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["pipeline", "run", *arguments])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("aggregate --window 5x", "--window 5x is not a duration"),
        ("aggregate --lateness soon", "--lateness soon is not a duration"),
        ("aggregate --by 1", "--by 1 is not a field name"),
        ("aggregate --sum 1", "--sum 1 is not a field name"),
        ("aggregate --sum a --sum a", "two result columns would have the same name: sum_a"),
        ("dedupe --key id --lateness x", "--lateness x is not a duration"),
        ("dedupe --key 1", "--key 1 is not a field name"),
    ],
)
def test_invalid_preset_option_is_one_line(words: str, message: str) -> None:
    result = run(*words.split(), "-t", "a", "--to", "b", "-b", "localhost:1")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {message}")
    assert len(result.stderr.splitlines()) == 1


def test_aggregate_accepts_a_lateness_of_zero() -> None:
    result = run("aggregate", "--lateness", "0s", "-t", "a", "--to", "b", "-b", "localhost:1")
    assert "--lateness" not in result.stderr
    assert "localhost:1" in result.stderr


def test_dedupe_requires_a_key() -> None:
    result = run("dedupe", "-t", "a", "--to", "b")
    assert result.exit_code == 2
    assert "--key" in result.stderr


@pytest.mark.parametrize("job", ["aggregate", "dedupe --key id"])
def test_preset_rejects_its_source_as_target(job: str) -> None:
    result = run(*job.split(), "-t", "a", "--to", "a")
    assert result.exit_code == 2
    assert "the job would never end" in result.stderr


@pytest.mark.parametrize(
    ("job", "parts"),
    [
        (
            "aggregate --by page --by user.id --window 5m --slide 1m --sum price --distinct user --time at",
            [
                "window(_time, '5 minutes', '1 minutes')",
                "sum(`_sum_price`) as `sum_price`",
                "approx_count_distinct(`_distinct_user`)",
                "withWatermark('_time', '10 minutes')",
                "try_to_timestamp(",
            ],
        ),
        ("aggregate --updates", ['outputMode("update")', "count(*) as `count`"]),
        (
            "dedupe --key id --key user --time at",
            ["dropDuplicatesWithinWatermark(['_identity'])", "'includeTimestamp'"],
        ),
        ("dedupe --key key --until end", ["row_number() over (partition by _identity", "spark.read.format"]),
    ],
)
def test_presets_are_ejected_as_plain_pyspark(moldau_broker: Broker, job: str, parts: list[str]) -> None:
    topic = moldau_broker.create_topic(f"preset-{uuid.uuid4().hex}", partitions=1)
    result = run(*job.split(), "-t", topic, "--to", "out", "--eject", "-", "-b", moldau_broker.bootstrap_servers)
    assert result.exit_code == 0, result.output
    compile(result.stdout, "script", "exec")
    assert "moldau.pipelines" not in result.stdout
    for part in parts:
        assert part in result.stdout


@pytest.mark.proves("D3", part="client settings")
def test_client_settings_reach_source_and_sink_of_a_job(moldau_broker: Broker) -> None:
    topic = moldau_broker.create_topic(f"preset-{uuid.uuid4().hex}", partitions=1)
    words = f"transform -t {topic} --to out --eject - --kafka security.protocol=PLAINTEXT --allow-data-loss"
    script = run(*words.split(), "-b", moldau_broker.bootstrap_servers).stdout
    assert script.count(".option('kafka.security.protocol', 'PLAINTEXT')") == 2
    assert script.count(".option('failOnDataLoss', 'false')") == 1
