"""`kafka.*` options: Java's names are translated to librdkafka's."""

import logging

import pytest

from pyspark_moldau.options.kafka_settings import consumer_settings, producer_settings
from pyspark_moldau.options.offset_limits import OptionError
from pyspark_moldau.options.security_settings import jaas_settings

HERE = {"kafka.bootstrap.servers": "a:1,b:2"}


def translated(**given: str) -> dict[str, str]:
    """Translate settings given with `_` for `.`."""
    java = {f"kafka.{name.replace('_', '.')}": value for name, value in given.items()}
    return dict(consumer_settings(HERE | java).librdkafka)


def test_java_settings_are_translated_to_librdkafka() -> None:
    assert translated(fetch_max_wait_ms="7", request_timeout_ms="9", receive_buffer_bytes="1", client_id="me") == {
        "bootstrap.servers": "a:1,b:2",
        "fetch.wait.max.ms": "7",
        "socket.timeout.ms": "9",
        "socket.receive.buffer.bytes": "1",
        "client.id": "me",
    }


def test_setting_without_effect_is_ignored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert translated(max_poll_records="5") == {"bootstrap.servers": "a:1,b:2"}
    assert "kafka.max.poll.records" in caplog.text


@pytest.mark.proves("D1")
def test_unknown_setting_is_rejected_with_the_nearest_name() -> None:
    with pytest.raises(OptionError, match=r"kafka\.fetch\.max\.byte'.*kafka\.fetch\.max\.bytes"):
        translated(fetch_max_byte="5")


def test_group_id_is_not_passed_to_every_client() -> None:
    settings = consumer_settings(HERE | {"kafka.group.id": "g"})
    assert settings.group_id == "g"
    assert "group.id" not in settings.librdkafka


def test_producer_settings_are_translated_without_transactional_id() -> None:
    settings = producer_settings(HERE | {"kafka.max.request.size": "5", "kafka.acks": "1"})
    assert dict(settings.librdkafka) == {"bootstrap.servers": "a:1,b:2", "message.max.bytes": "5", "acks": "1"}
    with pytest.raises(OptionError, match=r"transactional\.id"):
        producer_settings(HERE | {"kafka.transactional.id": "x"})


def test_invalid_number_is_rejected() -> None:
    settings = consumer_settings(HERE | {"kafka.fetch.min.bytes": "some"})
    with pytest.raises(OptionError, match=r"fetch\.min\.bytes"):
        settings.number("fetch.min.bytes", 1)
    assert settings.number("fetch.max.bytes", 17) == 17


def test_passwords_are_not_shown() -> None:
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="hidden";'
    assert "hidden" not in repr(consumer_settings(HERE | {"kafka.sasl.jaas.config": jaas}))


@pytest.mark.parametrize("module", ["plain.PlainLoginModule", "scram.ScramLoginModule"])
def test_jaas_config_with_a_password_is_parsed(module: str) -> None:
    line = f'org.apache.kafka.common.security.{module} required\n  username=\'a b\'\n  password="c\\"d;e";'
    assert jaas_settings(line) == {"sasl.username": "a b", "sasl.password": 'c"d;e'}


def test_jaas_config_for_tokens_or_kerberos_is_parsed() -> None:
    tokens = 'x.OAuthBearerLoginModule required clientId="i" clientSecret="s" scope="all";'
    assert jaas_settings(tokens) == {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "i",
        "sasl.oauthbearer.client.secret": "s",
        "sasl.oauthbearer.scope": "all",
    }
    kerberos = 'com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true keyTab="/k" principal="p@R";'
    assert jaas_settings(kerberos) == {"sasl.kerberos.principal": "p@R", "sasl.kerberos.keytab": "/k"}


@pytest.mark.parametrize(
    "line", ["", "PlainLoginModule username=a", 'x.PlainLoginModule required username="u";', "x.Own required a=b;"]
)
def test_invalid_jaas_config_is_rejected(line: str) -> None:
    with pytest.raises(OptionError, match=r"sasl\.jaas\.config"):
        jaas_settings(line)


def test_pem_certificates_are_accepted_and_java_keystores_rejected() -> None:
    assert translated(ssl_truststore_location="/ca", ssl_truststore_type="PEM")["ssl.ca.location"] == "/ca"
    pair = translated(ssl_keystore_location="/me", ssl_keystore_type="pem")
    assert (pair["ssl.certificate.location"], pair["ssl.key.location"]) == ("/me", "/me")
    bundle = translated(ssl_keystore_location="/me.p12", ssl_keystore_type="PKCS12", ssl_keystore_password="x")
    assert (bundle["ssl.keystore.location"], bundle["ssl.keystore.password"]) == ("/me.p12", "x")
    for side in ("truststore", "keystore"):
        with pytest.raises(OptionError, match=f"{side}.*JKS.*keytool"):
            translated(**{f"ssl_{side}_location": "/x.jks"})


def test_disabled_hostname_check_is_passed_on() -> None:
    name = "ssl_endpoint_identification_algorithm"
    assert translated(**{name: ""})["ssl.endpoint.identification.algorithm"] == "none"
    assert translated(**{name: "https"})["ssl.endpoint.identification.algorithm"] == "https"


def test_java_classes_are_rejected() -> None:
    with pytest.raises(OptionError, match="Java class"):
        translated(sasl_login_callback_handler_class="x.Y")


def test_store_without_a_type_is_pem_by_the_name_of_its_file() -> None:
    assert translated(ssl_truststore_location="/c/ca.pem")["ssl.ca.location"] == "/c/ca.pem"
    assert translated(ssl_keystore_location="/c/me.pem")["ssl.key.location"] == "/c/me.pem"
    with pytest.raises(OptionError, match="JKS store"):
        translated(ssl_truststore_location="/c/ca.jks")
