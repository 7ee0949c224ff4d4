"""Rules of a YAML file: what they accept, and the errors that name what is wrong."""

from collections.abc import Mapping

import pytest

from moldau.pipelines.progress import Progress, progress_of, prometheus_text
from moldau.pipelines.quality.page import check_page
from moldau.pipelines.quality.rules import rules_of, sql_text
from moldau.pipelines.requirements import PipelineError

WRONG: Mapping[str, str] = {
    "[": "is not YAML",
    "other: []": "has no rules for topic t",
    "t: []": "has no rules for topic t",
    "t: [1]": "rule 1 of t names no field",
    "t: [{field: a}]": "needs exactly one of not_null, range, .*it has none",
    "t: [{field: a, not_null: true, regex: x}]": "it has not_null, regex",
    "t: [{field: a, rnage: [0, 1]}]": "it has rnage",
    "t: [{field: 'a b', not_null: true}]": "field a b is not a field name",
    "t: [{field: a, not_null: false}]": "not_null must be true",
    "t: [{field: a, range: [1]}]": "range must be two numbers",
    "t: [{field: a, range: [null, null]}]": "range must be two numbers",
    "t: [{field: a, range: [a, b]}]": "range must be two numbers",
    "t: [{field: a, one_of: []}]": "one_of must be a list",
    "t: [{field: a, regex: 1}]": "regex must be a regular expression",
    "t: [{field: a, exists_in: 1}]": "exists_in must be the name of a topic",
    "t: [{field: a, unique: soon}]": "unique soon is not a duration",
    "t: [{field: a, not_null: true}, {field: a, not_null: true}]": "two rules of t are called a not_null",
}


@pytest.mark.parametrize("text", WRONG)
@pytest.mark.proves("D8")
def test_wrong_rules_are_named(text: str) -> None:
    with pytest.raises(PipelineError, match=f"rules.yml.*{WRONG[text]}"):
        rules_of(text, "t", "rules.yml")


@pytest.mark.proves("D8")
def test_rules_have_names_and_sql() -> None:
    found = rules_of('t: [{field: a.b, range: [null, 1.5]}, {field: key, regex: "it\'s", name: n}]', "t", "rules.yml")
    assert found.names == ["a.b range", "n"]
    assert "> 1.5D" in found.rows[0].violated
    assert "rlike 'it\\'s'" in found.rows[1].violated
    assert sql_text("a\\'\n") == "'a\\\\\\'\\n'"


@pytest.mark.proves("D8")
def test_violations_add_up_in_progress_metrics_and_page() -> None:
    event = {"batchId": 0, "timestamp": "2026-01-01T00:00:00Z", "observedMetrics": {"violations": {"a <b>": 2, "c": 0}}}
    once = progress_of({**event, "numInputRows": 10}, 0)
    twice = progress_of({**event, "numInputRows": 10}, 10, violations_before=once.violations)
    assert twice.violations == {"a <b>": 4, "c": 0}
    assert Progress.of_shape(twice.shape()) == twice
    assert "4 violations" in twice.line
    assert 'moldau_pipeline_rule_violations_total{pipeline="p",rule="a <b>"} 4' in prometheus_text(
        "p", [twice], is_running=True
    )
    page = check_page("t", ["a <b>", "c"], twice, "now")
    assert "a &lt;b&gt;" in page
    assert "<b>1 of 2</b>rules violated" in page
    assert "<b>20</b>records" in page
