"""TLS settings of listeners: every setting counts, a listener's own value before the general one."""

import pytest

from moldau.broker.access import ANONYMOUS
from moldau.broker.configs.tls_settings import RULES, ListenerTls, TlsListenerSettings, listener_tls
from moldau.model.errors import InvalidConfig
from moldau.model.settings import declared
from moldau.model.tls import ClientAuth, parse_tls

PEM_TEXT = {
    "ssl.keystore.type": "PEM",
    "ssl.keystore.key": "key",
    "ssl.keystore.certificate.chain": "chain",
}
CHANGES = {
    "ssl.keystore.type": {"ssl.keystore.type": "PKCS12"},
    "ssl.keystore.location": {"ssl.keystore.location": "/node.pem"},
    "ssl.keystore.password": {"ssl.keystore.password": "secret"},
    "ssl.keystore.key": PEM_TEXT,
    "ssl.keystore.certificate.chain": PEM_TEXT,
    "ssl.key.password": {"ssl.key.password": "secret"},
    "ssl.truststore.type": {"ssl.truststore.type": "PEM"},
    "ssl.truststore.location": {"ssl.truststore.location": "/ca.pem"},
    "ssl.truststore.password": {"ssl.truststore.password": "secret"},
    "ssl.truststore.certificates": {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": "authority"},
    "ssl.client.auth": {"ssl.client.auth": "required"},
    "ssl.enabled.protocols": {"ssl.enabled.protocols": "TLSv1.3"},
    "ssl.cipher.suites": {"ssl.cipher.suites": "TLS_AES_256_GCM_SHA384"},
    "ssl.endpoint.identification.algorithm": {"ssl.endpoint.identification.algorithm": ""},
}


@pytest.mark.parametrize("name", [each.name for each in declared(TlsListenerSettings).values() if each.name != RULES])
def test_every_setting_changes_the_tls_of_a_listener(name: str) -> None:
    assert parse_tls(CHANGES[name]) != parse_tls({})


def test_setting_of_a_listener_overrides_the_general_one() -> None:
    texts = {
        "ssl.client.auth": "required",
        "ssl.truststore.location": "/ca.pem",
        "listener.name.internal.ssl.client.auth": "none",
        "listener.name.internal.ssl.enabled.protocols": "TLSv1.2",
    }
    internal, other = listener_tls(texts, "INTERNAL"), listener_tls(texts, "EXTERNAL")
    assert (internal.client_auth, other.client_auth) == (ClientAuth.NONE, ClientAuth.REQUIRED)
    assert (internal.versions, other.versions) == (("TLSv1.2",), ("TLSv1.2", "TLSv1.3"))
    assert internal.truststore == other.truststore


def test_secrets_are_not_shown() -> None:
    tls = parse_tls({**PEM_TEXT, "ssl.key.password": "hunter2", "ssl.truststore.password": "hunter2"})
    assert "hunter2" not in repr(tls)
    assert "'key'" not in repr(tls)


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        ({"ssl.keystore.type": "BKS"}, "must be one of PEM, PKCS12, JKS"),
        ({"ssl.keystore.key": "key", "ssl.keystore.type": "PEM"}, "must be set together"),
        ({**PEM_TEXT, "ssl.keystore.type": "PKCS12"}, "must be PEM where certificates are given as text"),
        ({**PEM_TEXT, "ssl.keystore.location": "/x"}, "location must not be set"),
        ({"ssl.client.auth": "maybe"}, "must be one of none, requested, required"),
        ({"ssl.enabled.protocols": "TLSv1.1"}, "supported are TLSv1.2 and TLSv1.3"),
        ({"ssl.endpoint.identification.algorithm": "ldaps"}, "must be https"),
    ],
)
def test_contradictions_are_rejected(texts: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidConfig, match=problem):
        parse_tls(texts)


def test_dynamic_change_takes_effect_unless_it_is_invalid() -> None:
    texts = {"ssl.client.auth": "none"}
    tls = ListenerTls("SSL", lambda: texts)
    texts = {"ssl.client.auth": "required"}
    assert tls.settings().client_auth is ClientAuth.REQUIRED
    texts = {"ssl.keystore.key": "key without certificate"}
    assert tls.settings().client_auth is ClientAuth.REQUIRED


def test_principal_of_a_certificate_follows_the_rules_of_the_listener() -> None:
    tls = ListenerTls("SSL", lambda: {f"listener.name.ssl.{RULES}": "RULE:^CN=(.*?)$/$1/U,"})
    assert tls.principal("CN=alice") == "User:ALICE"
    assert tls.principal(None) == ANONYMOUS
