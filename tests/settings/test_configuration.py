"""Files and overrides: Java properties, TOML, precedence, and problems with file and line."""

import pytest

from moldau.model.errors import InvalidConfig
from moldau.model.ids import Address
from moldau.node.configuration import Configuration, load_configuration
from moldau.node.properties import format_properties, read_override, read_properties, read_toml

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
    with pytest.raises(InvalidConfig) as error:
        _load(*overrides, properties=properties)
    return str(error.value).splitlines()


def test_empty_configuration_is_a_local_node() -> None:
    configuration = load_configuration()
    assert configuration.listeners.advertised_on("PLAINTEXT") == Address("localhost", 9092)
    assert (configuration.settings.node_id, configuration.warnings) == (1, ())


def test_kafkas_server_properties_is_accepted() -> None:
    configuration = _load(properties=KAFKAS_OWN)
    assert configuration.settings.folders == ("/tmp/kraft-combined-logs",)
    assert [each.name for each in configuration.listeners.for_clients] == ["PLAINTEXT"]
    warning, about_listeners = configuration.warnings
    assert "num.io.threads" in warning
    assert "num.partitions" not in warning
    assert "reach PLAINTEXT://:9092, CONTROLLER://:9093 may read" in about_listeners


def test_overrides_win_over_files_and_later_files_over_earlier_ones() -> None:
    files = [("a.properties", "num.partitions=2\nnode.id=2"), ("b.toml", "num.partitions = 3")]
    configuration = load_configuration(files, ["num.partitions=4", "num.partitions = 5"])
    assert (configuration.settings.num_partitions, configuration.settings.node_id) == (5, 2)
    assert not configuration.warnings


def test_every_problem_is_reported_with_file_and_line() -> None:
    problems = _problems("node.id", "num.partitions=0", properties="\nlog.dris=/x\nlog.retention.hours=long\n")
    assert problems == [
        "-c node.id: must be name=value.",
        "server.properties:2: Unknown broker config name: log.dris. Did you mean log.dirs?",
        "server.properties:3: Invalid value long for configuration log.retention.hours: it must be a whole number.",
        "-c: Invalid value 0 for configuration num.partitions: it must be at least 1.",
    ]


def test_topic_setting_in_a_file_is_distinguished_from_a_typo() -> None:
    (problem,) = _problems(properties="retention.ms=5")
    assert "setting of topics" in problem
    assert "log.retention.ms or log.retention.minutes or log.retention.hours" in problem
    (problem,) = _problems("remote.storage.enable=true")
    assert problem == "-c: remote.storage.enable is a setting of topics, not of brokers."


def test_conflict_between_settings_names_their_locations() -> None:
    (problem,) = _problems("broker.id=2", properties="node.id=1")
    assert problem.endswith("(server.properties:1 sets node.id; -c sets broker.id)")


def test_unknown_and_secret_values_are_not_shown() -> None:
    assert "hunter2" not in "".join(_problems("ssl.pass=hunter2", "hunter2", "my.secret=hunter2")[1:])
    configuration = _load("ssl.key.password=hunter2", "rsm.config.key=hunter2")
    assert "hunter2" not in repr(configuration)
    assert configuration.texts["ssl.key.password"] == "hunter2"


def test_removed_settings_are_ignored_with_a_warning() -> None:
    configuration = _load(properties="zookeeper.connect=localhost:2181\ninter.broker.protocol.version=3.9\n")
    assert configuration.warnings == (
        "Ignoring settings that Kafka 4.0 removed: inter.broker.protocol.version, zookeeper.connect.",
    )
    assert not configuration.texts


def test_duplicate_name_in_a_file_is_a_warning() -> None:
    configuration = _load(properties="num.partitions=2\nnum.partitions=3")
    assert configuration.settings.num_partitions == 3
    assert (
        "server.properties:2: num.partitions overrides the value set at server.properties:1"
        in configuration.warnings[0]
    )


def test_broker_id_is_used_as_node_id() -> None:
    configuration = _load("broker.id=5")
    assert (configuration.settings.node_id, configuration.texts["node.id"]) == (5, "5")


def test_wildcard_listener_is_a_warning() -> None:
    assert "localhost" in _load("listeners=PLAINTEXT://0.0.0.0:9092").warnings[0]


KEYSTORE = ("ssl.keystore.location=node.pem", "ssl.truststore.location=ca.pem")
WITH_ACLS = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@pytest.mark.parametrize(
    ("overrides", "is_open"),
    [
        (("listeners=PLAINTEXT://10.0.0.1:9092",), True),
        (("listeners=PLAINTEXT://broker.example.org:9092",), True),
        (("listeners=PLAINTEXT://localhost:9092",), False),
        (("listeners=PLAINTEXT://127.0.0.2:9092",), False),
        (("listeners=PLAINTEXT://[::1]:9092",), False),
        (("listeners=SSL://10.0.0.1:9092", *KEYSTORE), True),
        (("listeners=SSL://10.0.0.1:9092", *KEYSTORE, "ssl.client.auth=requested"), True),
        (("listeners=SSL://10.0.0.1:9092", *KEYSTORE, "ssl.client.auth=required"), False),
        (("listeners=SSL://10.0.0.1:9092", *KEYSTORE, "listener.name.ssl.ssl.client.auth=required"), False),
        (("listeners=SASL_PLAINTEXT://10.0.0.1:9092", "sasl.enabled.mechanisms=SCRAM-SHA-512"), False),
        (("listeners=PLAINTEXT://10.0.0.1:9092", WITH_ACLS), False),
        (("listeners=PLAINTEXT://10.0.0.1:9092", WITH_ACLS, "allow.everyone.if.no.acl.found=true"), True),
        (("listeners=PLAINTEXT://10.0.0.1:9092", WITH_ACLS, "super.users=User:a;User:ANONYMOUS"), True),
    ],
)
def test_listener_without_authentication_beyond_loopback_is_a_warning(
    overrides: tuple[str, ...], is_open: bool
) -> None:
    protocol = overrides[0].removeprefix("listeners=").partition(":")[0]
    warnings = _load(*overrides, f"security.inter.broker.protocol={protocol}").warnings
    assert ["no authentication is required there" in each for each in warnings] == [True] * is_open


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("authorizer.class.name=kafka.security.authorizer.AclAuthorizer", "the only authorizer is org.apache.kafka"),
        ("super.users=User:admin;root", "root is not of the form principalType:principalName"),
    ],
)
def test_authorizer_that_cannot_work_is_rejected(override: str, word: str) -> None:
    with pytest.raises(InvalidConfig, match=word):
        _load(override)


def test_standard_authorizer_is_accepted_without_a_warning() -> None:
    configuration = _load("authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer")
    assert not configuration.warnings


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("listeners=SSL://localhost:9093", "uses TLS but has no certificate"),
        ("log.dirs=/a,/b,/a/", "names a directory twice"),
        ("listeners=localhost:9092", "NAME://host:port"),
        ("advertised.listeners=PLAINTEXT://0.0.0.0:9092", "nonroutable"),
    ],
)
def test_unsupported_settings_are_rejected(override: str, word: str) -> None:
    (problem,) = _problems(override)
    assert word in problem


def test_inter_broker_listener_is_set_in_one_way_only() -> None:
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
def test_properties_line_is_parsed_like_java(line: str, name: str, value: str) -> None:
    (entry,) = read_properties(line, "f")
    assert (entry.name, entry.text) == (name, value.strip())


def test_comments_and_blank_lines_are_skipped_and_counted() -> None:
    entries = read_properties("# a=1\n\n  ! b=2\\\nc=3\n\td=4\\\n 5\ne=6", "f")
    assert [(entry.name, entry.text, entry.where) for entry in entries] == [
        ("c", "3", "f:4"),
        ("d", "45", "f:5"),
        ("e", "6", "f:7"),
    ]


def test_two_trailing_backslashes_do_not_continue_the_line() -> None:
    assert [entry[:2] for entry in read_properties("a=b\\\\\nc=d", "f")] == [("a", "b\\"), ("c", "d")]


@pytest.mark.parametrize("line", ["=b", ":b", "a=\\u00g1", "a=\\u12"])
def test_invalid_properties_line_is_rejected(line: str) -> None:
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
def test_invalid_toml_is_rejected(text: str) -> None:
    with pytest.raises(InvalidConfig, match=r"^f\.toml"):
        read_toml(text, "f.toml")


def test_override_splits_at_the_first_equals_sign() -> None:
    assert read_override("a = b=c") == ("a", "b=c", "-c")
    for argument in ("a", "=b", ""):
        with pytest.raises(InvalidConfig, match="name=value"):
            read_override(argument)


@pytest.mark.parametrize(
    "text",
    ["", "plain", " leading", 'user="a b" password="back\\slash, = and :";', "two\nlines\r\n", "\ttab", "ünï", "a\\"],
)
def test_formatted_properties_are_read_back_unchanged(text: str) -> None:
    written = format_properties({"first": "1", "with = : # and blank": text, "last": "2"})
    assert [entry[:2] for entry in read_properties(written, "f")] == [
        ("first", "1"),
        ("with = : # and blank", text.strip()),
        ("last", "2"),
    ]
