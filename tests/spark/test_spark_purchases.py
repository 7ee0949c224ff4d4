"""The Spark example, on the output of the clickstream example."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from moldau.testing.broker import Broker
from moldau_dev.spark import SETTINGS, printed_by, read_committed

EXAMPLES: Final = Path(__file__).resolve().parents[2] / "examples"
EVENTS: Final = 500


@pytest.mark.proves("D1", "D2")
def test_purchases_example_writes_each_purchase_once(
    spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path
) -> None:
    target = moldau_broker.create_topic(f"{topic}-purchases", partitions=2)
    common = ("--bootstrap-servers", moldau_broker.bootstrap_servers, "--topic", topic)
    made = json.loads(printed_by(EXAMPLES / "activity/clickstream.py", *common, "--events", str(EVENTS), "--json"))
    assert made["events"] == EVENTS
    records = read_committed(moldau_broker, topic, 2)
    assert len(records) == made["records"] == EVENTS + made["repeated"] + made["broken"]
    bought = [value for _, value in records if b'"kind": "purchase"' in value]
    assert bought
    program, checkpoint = EXAMPLES / "spark/purchases_moldau.py", str(tmp_path / "checkpoint")
    shown = printed_by(program, *common, "--to", target, "--checkpoint", checkpoint)
    spark.sparkContext.setLogLevel(SETTINGS["spark.log.level"])  # the example changes it
    assert Counter(value for _, value in read_committed(moldau_broker, target, 2)) == Counter(bought)
    pages = {page: int(count.replace(",", "")) for count, page in re.findall(r"^ *([\d,]+)  (/\S*)$", shown, re.M)}
    assert pages == Counter(json.loads(value)["page"] for value in bought)
