"""The warning at startup about a metrics page that is open to other machines without authentication."""

import pytest

from moldau.node.configuration import load_configuration

TLS = ("ssl.keystore.location=/certificates/node.pem", "ssl.truststore.location=/certificates/ca.pem")
OPEN = "moldau.metrics.listener=0.0.0.0:9404"
BY_TLS = "moldau.metrics.security.protocol=SSL"


def warnings(*overrides: str) -> list[str]:
    found = load_configuration(overrides=["listeners=PLAINTEXT://localhost:9092", *overrides]).warnings
    return [each for each in found if "metrics" in each]


@pytest.mark.parametrize("overrides", [[OPEN], ["moldau.metrics.listener=alpha:9404"], [OPEN, BY_TLS, *TLS]])
def test_open_metrics_page_is_named(overrides: list[str]) -> None:
    (warning,) = warnings(*overrides)
    assert "moldau.metrics.token" in warning


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["moldau.metrics.listener="],
        ["moldau.metrics.listener=[::1]:9404"],
        [OPEN, "moldau.metrics.token=0123456789abcdef"],
        [OPEN, BY_TLS, "listener.name.metrics.ssl.client.auth=required", *TLS],
    ],
)
def test_local_and_protected_metrics_pages_have_no_warning(overrides: list[str]) -> None:
    assert not warnings(*overrides)
