"""Files and flags: Java's properties syntax, TOML, what counts when, and problems with file and line."""

import pytest

from moldau.model.errors import InvalidConfig
from moldau.model.ids import Address
from moldau.node.configuration import Configuration, load_configuration
from moldau.node.properties import read_override, read_properties, read_toml

# The settings of the server.properties that Apache Kafka 4.x ships.
KAFKAS_OWN = """
# A comment
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
#log.flush.interval.messages=10000
#log.flush.interval.ms=1000
log.retention.hours=168
#log.retention.bytes=1073741824
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""


def _load(*overrides: str, properties: str = "") -> Configuration:
    return load_configuration([("server.properties", properties)], overrides)


def _problems(*overrides: str, properties: str = "") -> list[str]:
    with pytest.raises(InvalidConfig) as refusal:
        _load(*overrides, properties=properties)
    return str(refusal.value).splitlines()


def test_nothing_said_is_a_node_on_this_machine() -> None:
    configuration = load_configuration()
    assert configuration.listeners.advertised_on("PLAINTEXT") == Address("localhost", 9092)
    assert (configuration.settings.node_id, configuration.warnings) == (1, ())


def test_the_file_that_kafka_ships_is_accepted() -> None:
    configuration = _load(properties=KAFKAS_OWN)
    assert configuration.settings.folders == ("/tmp/kraft-combined-logs",)
    assert [each.name for each in configuration.listeners.for_clients] == ["PLAINTEXT"]
    (warning,) = configuration.warnings
    assert "num.io.threads" in warning
    assert "num.partitions" not in warning


def test_flags_go_over_files_and_later_files_over_earlier_ones() -> None:
    files = [("a.properties", "num.partitions=2\nnode.id=2"), ("b.toml", "num.partitions = 3")]
    configuration = load_configuration(files, ["num.partitions=4", "num.partitions = 5"])
    assert (configuration.settings.num_partitions, configuration.settings.node_id) == (5, 2)
    assert not configuration.warnings


def test_every_problem_is_told_with_its_place() -> None:
    problems = _problems("node.id", "num.partitions=0", properties="\nlog.dris=/x\nlog.retention.hours=long\n")
    assert problems == [
        "-c node.id: must be name=value.",
        "server.properties:2: Unknown broker config name: log.dris. Did you mean log.dirs?",
        "server.properties:3: Invalid value long for configuration log.retention.hours: it must be a whole number.",
        "-c: Invalid value 0 for configuration num.partitions: it must be at least 1.",
    ]


def test_a_topic_setting_in_a_file_is_told_from_a_slip() -> None:
    (problem,) = _problems(properties="retention.ms=5")
    assert "setting of topics" in problem
    assert "log.retention.ms or log.retention.minutes or log.retention.hours" in problem
    (problem,) = _problems("remote.storage.enable=true")
    assert problem == "-c: remote.storage.enable is a setting of topics, not of brokers."


def test_a_problem_between_settings_tells_where_they_were_set() -> None:
    (problem,) = _problems("broker.id=2", properties="node.id=1")
    assert problem.endswith("(server.properties:1 sets node.id; -c sets broker.id)")


def test_values_of_unknown_names_and_secrets_are_not_shown() -> None:
    assert "hunter2" not in "".join(_problems("ssl.pass=hunter2", "hunter2", "my.secret=hunter2")[1:])
    configuration = _load("ssl.key.password=hunter2", "rsm.config.key=hunter2")
    assert "hunter2" not in repr(configuration)
    assert configuration.texts["ssl.key.password"] == "hunter2"


def test_settings_that_kafka_removed_are_ignored_with_a_word() -> None:
    configuration = _load(properties="zookeeper.connect=localhost:2181\ninter.broker.protocol.version=3.9\n")
    assert configuration.warnings == (
        "Ignoring settings that Kafka 4.0 removed: inter.broker.protocol.version, zookeeper.connect.",
    )
    assert not configuration.texts


def test_a_name_twice_in_one_file_is_worth_a_warning() -> None:
    configuration = _load(properties="num.partitions=2\nnum.partitions=3")
    assert configuration.settings.num_partitions == 3
    assert (
        "server.properties:2: num.partitions overrides the value set at server.properties:1"
        in configuration.warnings[0]
    )


def test_an_old_broker_id_is_the_nodes_id() -> None:
    configuration = _load("broker.id=5")
    assert (configuration.settings.node_id, configuration.texts["node.id"]) == (5, "5")


def test_a_wildcard_listener_is_worth_a_warning() -> None:
    assert "localhost" in _load("listeners=PLAINTEXT://0.0.0.0:9092").warnings[0]


def test_an_authorizer_that_is_not_there_is_worth_a_warning_of_its_own() -> None:
    warnings = _load("authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer").warnings
    assert any("every client may do everything" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("listeners=SSL://localhost:9093", "only PLAINTEXT is supported"),
        ("log.dirs=/a,/b", "several directories"),
        ("listeners=localhost:9092", "NAME://host:port"),
        ("advertised.listeners=PLAINTEXT://0.0.0.0:9092", "nonroutable"),
    ],
)
def test_what_would_make_another_node_than_asked_for_is_refused(override: str, word: str) -> None:
    (problem,) = _problems(override)
    assert word in problem


def test_the_brokers_listener_is_named_one_way() -> None:
    (problem,) = _problems("inter.broker.listener.name=PLAINTEXT", "security.inter.broker.protocol=PLAINTEXT")
    assert problem.startswith("Only one of")


# The syntax of files


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("a=b", "a", "b"),
        ("a = b ", "a", "b"),
        ("a:b", "a", "b"),
        ("a b", "a", "b"),
        ("  a\t=\tb=c", "a", "b=c"),
        ("a", "a", ""),
        ("a=", "a", ""),
        ("a=b # not a comment", "a", "b # not a comment"),
        ("a\\=b=c", "a=b", "c"),
        ("a\\ b\\:c d", "a b:c", "d"),
        ("a=C:\\\\data\\n\\t\\q", "a", "C:\\data\n\tq"),
        ("a=\\u0041\\u00e9", "a", "Aé"),
        ("a=b\\\n   c", "a", "bc"),
        ("a=b\\\r\n# c", "a", "b# c"),
        ("a=b\\\\", "a", "b\\"),
        ("a=b\\", "a", "b"),
        ("\ufeffa=b", "a", "b"),
    ],
)
def test_a_line_of_properties_is_read_as_java_reads_it(line: str, name: str, value: str) -> None:
    (entry,) = read_properties(line, "f")
    assert (entry.name, entry.text) == (name, value.strip())


def test_comments_and_blank_lines_are_passed_over_and_lines_counted() -> None:
    entries = read_properties("# a=1\n\n  ! b=2\\\nc=3\n\td=4\\\n 5\ne=6", "f")
    assert [(entry.name, entry.text, entry.where) for entry in entries] == [
        ("c", "3", "f:4"),
        ("d", "45", "f:5"),
        ("e", "6", "f:7"),
    ]


def test_two_backslashes_at_the_end_of_a_line_do_not_continue_it() -> None:
    assert [entry[:2] for entry in read_properties("a=b\\\\\nc=d", "f")] == [("a", "b\\"), ("c", "d")]


@pytest.mark.parametrize("line", ["=b", ":b", "a=\\u00g1", "a=\\u12"])
def test_a_line_that_java_would_not_read_is_refused(line: str) -> None:
    with pytest.raises(InvalidConfig, match=r"^f:1: "):
        read_properties(line, "f")


def test_toml_may_be_flat_or_nested() -> None:
    text = """
num.partitions = 3
"log.dir" = "/x"            # a quoted name is one piece

[log.retention]
hours = 2
check.interval.ms = 5_000

[log]
dirs = ["/a", "/b"]
preallocate = true
cleaner.min.cleanable.ratio = 0.25
"""
    entries = {entry.name: entry for entry in read_toml(text, "f.toml")}
    assert {name: entry.text for name, entry in entries.items()} == {
        "num.partitions": "3",
        "log.dir": "/x",
        "log.retention.hours": "2",
        "log.retention.check.interval.ms": "5000",
        "log.dirs": "/a,/b",
        "log.preallocate": "true",
        "log.cleaner.min.cleanable.ratio": "0.25",
    }
    assert entries["log.dir"].where == "f.toml:3"
    assert entries["log.preallocate"].where == "f.toml:11"


@pytest.mark.parametrize("text", ["a = ", "a = 1979-05-27", "[[a]]\nb = 1", "a = 1\na = 2"])
def test_toml_that_holds_no_settings_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match=r"^f\.toml"):
        read_toml(text, "f.toml")


def test_an_override_keeps_what_follows_the_first_equals_sign() -> None:
    assert read_override("a = b=c") == ("a", "b=c", "-c")
    for argument in ("a", "=b", ""):
        with pytest.raises(InvalidConfig, match="name=value"):
            read_override(argument)
