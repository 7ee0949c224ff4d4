"""Requests that schemathesis generates from the OpenAPI description: none of them may end in a server error."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

from moldau.testing import Broker
from moldau_dev.console import serve

PROGRAM = os.environ.get("SCHEMATHESIS") or str(Path(sys.executable).with_name("st"))
EXAMPLES = os.environ.get("EXAMPLES", "50")  # of each operation
SEED = os.environ.get("SEED", "1")
TIMEOUT_S = 900


def test_no_generated_request_ends_in_a_server_error() -> None:
    with Broker() as broker, serve(broker.bootstrap_servers) as url:
        topic = json.dumps({"name": "t", "partitions": 3}).encode()
        headers = {"Content-Type": "application/json"}
        urllib.request.urlopen(urllib.request.Request(f"{url}/v1/topics", topic, headers)).close()
        options = ["--url", url, "--checks", "not_a_server_error", "--max-examples", EXAMPLES, "--seed", SEED]
        command = [PROGRAM, "run", f"{url}/v1/openapi.json", *options, "--phases", "examples,coverage,fuzzing"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout[-5_000:]
