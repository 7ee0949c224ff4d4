"""At least once, the default: process first, then commit. A crash in between repeats a message; none is lost."""

import argparse
import os

import moldau

parser = argparse.ArgumentParser()
parser.add_argument("--bootstrap-servers", default="localhost:9092")
parser.add_argument("--topic", default="payments")
parser.add_argument("--results", default="results.txt", help="what the work leaves behind, a line for each message")
parser.add_argument("--crash-at", type=int, default=-1, help="die in the middle of this message, as by a power cut")
arguments = parser.parse_args()

# As a static member, a restarted consumer gets its partitions back at once, without waiting for the session timeout.
reader = {"group_instance_id": "reader-1"}

with (
    moldau.connect(arguments.bootstrap_servers) as connection,
    connection.consume(arguments.topic, group="at-least-once", idle_s=5, **reader) as messages,
    open(arguments.results, "a") as results,
):
    for message in messages:
        print(message.text, file=results, flush=True)
        if message.offset == arguments.crash_at:
            os._exit(1)  # not committed yet: the offset is committed when the next message is requested
