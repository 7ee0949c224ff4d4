"""From the subject of a certificate to a user name, in Kafka's syntax."""

import pytest

from moldau.broker.configs.principal_rules import PrincipalRules
from moldau.model.errors import InvalidConfig

ALICE = "CN=Alice,OU=Services,O=Example,L=Berlin,ST=BE,C=DE"


@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        ("DEFAULT", ALICE, ALICE),
        ("", ALICE, ALICE),
        ("RULE:^CN=(.*?),OU=Services.*$/$1/", ALICE, "Alice"),
        ("RULE:^CN=(.*?),OU=Services.*$/$1/L", ALICE, "alice"),
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/U", ALICE, "ALICE@SERVICES"),
        ("RULE:^CN=([^,]*)$/$1/ , RULE:^CN=(\\w+),OU=(\\w+),.*$/$2.$1/L,DEFAULT", ALICE, "services.alice"),
        ("RULE:^CN=Bob$/bob/,DEFAULT", ALICE, ALICE),
        ("RULE:^CN=Alice.*$/a\\/b/", ALICE, "a/b"),
        ("RULE:^OU=(.*?),CN=(.*)$/$2/", "OU=x,CN=y", "y"),
        ("RULE:^CN=(.*?),.*$/$1$2/", ALICE, "Alice$2"),
        ("RULE:^CN=(.*?),.*$/$12/", ALICE, "Alice2"),
        ("RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L", ALICE, "alice"),
    ],
)  # fmt: skip
def test_first_matching_rule_names_the_user(rules: str, subject: str, name: str) -> None:
    assert PrincipalRules.parse(rules).apply(subject) == name


def test_subject_without_a_matching_rule_is_rejected() -> None:
    with pytest.raises(InvalidConfig, match=r"no rule of ssl\.principal\.mapping\.rules applies to CN=Alice"):
        PrincipalRules.parse("RULE:^CN=Bob.*$/bob/").apply(ALICE)


@pytest.mark.parametrize(
    "rules",
    ["RULE:^CN=(.*)$/$1", "RULE:^CN=$", "default", "RULE:^CN=(.*?)$/$1/X", "RULE:(/x/", "RULE:(a)\\1/x/", "DEFAULT;"],
)  # fmt: skip
def test_malformed_rules_are_rejected(rules: str) -> None:
    with pytest.raises(InvalidConfig):
        PrincipalRules.parse(rules)


def test_hostile_subject_costs_linear_time() -> None:
    rules = PrincipalRules.parse("RULE:^(a+)+$/$1/,DEFAULT")
    subject = "a" * 4000 + "b"
    assert rules.apply(subject) == subject
