"""`moldau topic trim` on a broker."""

import json
import subprocess
import sys
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from moldau.testing import Broker


def trim(broker: Broker, *options: str) -> Any:
    command = [sys.executable, "-P", "-m", "moldau.cli.main", "topic", "trim", "orders", "-b", broker.bootstrap_servers]
    done = subprocess.run([*command, *options, "--json"], capture_output=True, text=True, timeout=60, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr


@pytest.mark.proves("A4", part="topics and settings")
def test_trim_deletes_the_oldest_records_of_each_partition() -> None:
    with Broker() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic("orders", 2)])["orders"].result(30)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for number in range(30):
            producer.produce("orders", b"x", partition=number % 2)
        assert producer.flush(20) == 0
        planned = trim(broker, "--before", "-5", "--dry-run")
        assert (planned["records"], planned["is_dry_run"]) == (20, True)
        done = trim(broker, "--before", "-5", "--partition", "1")
        assert done["partitions"] == [{"partition": 1, "start": 0, "new_start": 10}]
        assert trim(broker, "--before", "@-1h")["records"] == 0
        assert trim(broker, "--before", "end")["records"] == 15 + 5
        assert "partition 7 does not exist" in trim(broker, "--before", "end", "--partition", "7")
        assert "is not a position" in trim(broker, "--before", "yesterday")
