"""The two versions of the example, which differ in one word, do the same."""

import json
from pathlib import Path
from typing import Any, Final

from connector import BOTH

from moldau.testing.broker import Broker
from moldau_dev.spark import printed_by, read_committed

EXAMPLES: Final = Path(__file__).resolve().parents[2] / "examples"


def test_both_connectors_write_the_same_purchases(
    spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path
) -> None:
    del spark
    common = ("--bootstrap-servers", moldau_broker.bootstrap_servers, "--topic", topic)
    made = json.loads(printed_by(EXAMPLES / "activity/clickstream.py", *common, "--events", "500", "--json"))
    records = read_committed(moldau_broker, topic, 2)
    assert len(records) == made["records"]
    shown = []
    for form in BOTH:
        target = moldau_broker.create_topic(f"{topic}-{form}", partitions=2)
        program, checkpoint = EXAMPLES / f"spark/purchases_{form}.py", str(tmp_path / form)
        shown.append(printed_by(program, *common, "--to", target, "--checkpoint", checkpoint))
        bought = [value for _, value in read_committed(moldau_broker, target, 2)]
        assert sorted(bought) == sorted(value for _, value in records if b'"kind": "purchase"' in value)
    assert shown[0] == shown[1] != ""
