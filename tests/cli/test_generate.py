"""`moldau generate`: what it writes names only what a broker exports."""

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.request import urlopen

import pytest
import yaml
from typer.testing import CliRunner

from moldau.broker.metrics.catalogue import CATALOGUE
from moldau.cli.main import app
from moldau.testing import Broker

pytestmark = [pytest.mark.proves("O2", part="Prometheus alerting rules")]

SELECTOR = re.compile(r"([a-zA-Z_][a-zA-Z0-9_]*)\{([^}]*)\}")
MATCHER = re.compile(r'([a-z_]+)(?:=~|!=|=)"')
GROUPING = re.compile(r"\bby \(([^)]*)\)")
OF_PROMETHEUS = {"job", "instance", "quantile", "le"}  # labels of scrapes, and of the parts of summaries and histograms
PART_OF_FAMILY = re.compile(r"_(bucket|sum|count)$")


def moldau(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, f"{result.output}{result.exception!r}"
    return result.stdout if code == 0 else result.stderr


def alerting_rules(*options: str) -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(moldau("generate", "alerts", *options))["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def dashboard() -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(moldau("generate", "grafana"))
    return shown


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in alerting_rules())
    board = dashboard()
    yield from (target["expr"] for panel in board["panels"] for target in panel.get("targets", ()))
    yield from (each["query"] for each in board["templating"]["list"] if each["type"] == "query")


@pytest.fixture(scope="module")
def page() -> Iterator[str]:
    with Broker() as broker:
        CliRunner().invoke(app, ["produce", "clicks", "-b", broker.bootstrap_servers], input="a\nb\n")
        assert broker.metrics is not None
        with urlopen(broker.metrics, timeout=30) as response:
            yield response.read().decode()


def test_every_named_metric_is_on_the_page_of_a_broker(page: str) -> None:
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE))
    named = {name for each in expressions() for name, _ in SELECTOR.findall(each)} - {"up"}
    assert len(named) > 40
    families = {PART_OF_FAMILY.sub("", name) if name not in kinds else name for name in named}
    assert families - set(kinds) == set()
    parts = named - families
    assert {kinds[PART_OF_FAMILY.sub("", name)] for name in parts} <= {"summary", "histogram"}
    samples = set(re.findall(r"^([a-z0-9_]+)[{ ]", page, re.MULTILINE))
    assert parts - samples == set()


def test_selected_labels_are_labels_of_the_metric() -> None:
    labels = {metric.name: set(metric.labels) for metric in CATALOGUE}
    for expression in expressions():
        selected: set[str] = set()
        for name, matchers in SELECTOR.findall(expression):
            own = labels.get(PART_OF_FAMILY.sub("", name) if name not in labels else name, set())
            assert set(MATCHER.findall(matchers)) <= own | OF_PROMETHEUS, expression
            selected |= own
        for grouping in GROUPING.findall(expression):
            assert set(grouping.split(", ")) <= selected | OF_PROMETHEUS, expression


def test_summary_quantile_of_the_dashboard_is_exported(page: str) -> None:
    (wanted,) = {each for text in expressions() for each in re.findall(r'quantile="([^"]+)"', text)}
    assert f'kafka_network_requestmetrics_totaltimems{{request="Produce",quantile="{wanted}"}}' in page


def test_every_selector_of_a_rule_names_the_job() -> None:
    for rule in alerting_rules("--job", 'the "first" one'):
        selectors = SELECTOR.findall(rule["expr"])
        assert selectors
        assert all(matchers == r'job="the \"first\" one"' for _, matchers in selectors), rule["expr"]


def test_yaml_and_json_of_the_rules_are_equal() -> None:
    rules = alerting_rules("--lag", "77")
    assert json.loads(moldau("generate", "alerts", "--json", "--lag", "77"))["groups"][0]["rules"] == rules
    assert len({rule["alert"] for rule in rules}) == len(rules)
    assert any("> 77 and" in rule["expr"] for rule in rules)


def test_advice_of_the_rules_names_existing_commands() -> None:
    advice = [each for rule in alerting_rules() for each in re.findall(r"moldau [a-z]+ [a-z-]+", str(rule))]
    assert advice
    for command in set(advice):
        assert moldau(*command.split()[1:], "--help")


def test_panels_lie_side_by_side_without_overlap() -> None:
    cells: set[tuple[int, int]] = set()
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        own = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not own & cells, panel["title"]
        assert place["x"] + place["w"] <= 24
        cells |= own


def test_job_that_prometheus_cannot_have_is_rejected() -> None:
    assert "--job 'a\\nb': write the job_name of Prometheus" in moldau("generate", "alerts", "--job", "a\nb", code=2)
    assert "--job ''" in moldau("generate", "grafana", "--job", "", code=2)
