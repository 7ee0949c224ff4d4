"""The table of commands. To add a command: one file with a Typer `app`, one line here.

A command's module is imported when it is called, so that `moldau start` does not load `moldau consume`.
"""

from typing import Final

COMMANDS: Final[dict[str, str]] = {
    "start": "moldau.cli.start:app",
    "up": "moldau.cli.up:app",
    "topic": "moldau.cli.topics:app",
    "config": "moldau.cli.configs:app",
    "group": "moldau.cli.groups:app",
    "schedule": "moldau.cli.schedules:app",
    "queue": "moldau.cli.queues:app",
    "profile": "moldau.cli.profiles:app",
    "acl": "moldau.cli.acls:app",
    "user": "moldau.cli.users:app",
    "token": "moldau.cli.tokens:app",
    "txn": "moldau.cli.transactions:app",
    "quota": "moldau.cli.quotas:app",
    "produce": "moldau.cli.produce:app",
    "consume": "moldau.cli.consume:app",
    "pipeline": "moldau.cli.pipelines:app",
    "sql": "moldau.cli.sql:app",
    "serve": "moldau.cli.serve:app",
    "cluster": "moldau.cli.clusters:app",
    "broker": "moldau.cli.brokers:app",
    "features": "moldau.cli.features:app",
    "quorum": "moldau.cli.quorums:app",
    "reassign": "moldau.cli.reassignments:app",
    "partition": "moldau.cli.partitions:app",
    "log": "moldau.cli.log:app",
    "log-dirs": "moldau.cli.log_dirs:app",
    "storage": "moldau.cli.storage:app",
    "cert": "moldau.cli.certs:app",
    "generate": "moldau.cli.generate:app",
    "bench": "moldau.cli.bench.command:app",
    "debug": "moldau.cli.debug:app",
    "self-test": "moldau.cli.self_test:app",
    "plan": "moldau.cli.plan:app",
    "version": "moldau.cli.version:app",
}
