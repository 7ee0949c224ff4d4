"""Exactly once, into a database: the result and the offset are written in one transaction of the database.

The committed offset of the group is not used. After a crash the program resumes from the offset in the database, which
always matches the results in it.
"""

import argparse
import os
import sqlite3

import moldau

parser = argparse.ArgumentParser()
parser.add_argument("--bootstrap-servers", default="localhost:9092")
parser.add_argument("--topic", default="payments")
parser.add_argument("--results", default="results.db", help="a SQLite file")
parser.add_argument("--crash-at", type=int, default=-1, help="die in the middle of this message, as by a power cut")
arguments = parser.parse_args()

database = sqlite3.connect(arguments.results)
database.execute("create table if not exists results (message text)")
database.execute("create table if not exists progress (topic text primary key, next_offset integer)")
found = database.execute("select next_offset from progress where topic = ?", [arguments.topic]).fetchone()

with (
    moldau.connect(arguments.bootstrap_servers) as connection,
    connection.consume(arguments.topic, start=found[0] if found else "earliest", idle_s=5) as messages,
):
    for message in messages:
        with database:  # both rows, or neither
            database.execute("insert into results values (?)", [message.text])
            if message.offset == arguments.crash_at:
                os._exit(1)
            database.execute("insert or replace into progress values (?, ?)", [message.topic, message.offset + 1])
