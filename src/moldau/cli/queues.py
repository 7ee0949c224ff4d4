"""`moldau queue`: create, list, put, take, status, peek, dead, delete. A queue is a topic and a share group."""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from moldau.cli.errors import CommandError, usage_error
from moldau.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Json, duration_ms, in_utf8, pairs
from moldau.cli.output import note, show_json, show_table
from moldau.cli.queue_dead import Group, Topic
from moldau.cli.queue_dead import app as dead_app

if TYPE_CHECKING:
    from moldau.client.queues import QueueOptions

app = typer.Typer(help="Queues of jobs on share groups: retries, dead letters, delays.", no_args_is_help=True)
app.add_typer(dead_app, name="dead")


@app.command()
def create(
    topic: Topic,
    group: Group = None,
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1, help="Of a new topic.")] = 1,
    replication_factor: Annotated[int, typer.Option("--replication-factor", "-r", help="Of a new topic.")] = -1,
    max_attempts: Annotated[
        int | None, typer.Option("--max-attempts", min=1, help="Deliveries until a job is given up.")
    ] = None,
    lock: Annotated[
        str | None, typer.Option("--lock", metavar="30s", help="Time for one attempt; then it is delivered again.")
    ] = None,
    dead_letters: Annotated[
        str | None, typer.Option("--dead-letters", metavar="TOPIC", help="Keep jobs that were given up there.")
    ] = None,
    order: Annotated[
        str | None, typer.Option("--order", metavar="none|key", help="key: jobs of one key one at a time, in order.")
    ] = None,
    backoff: Annotated[
        str | None, typer.Option("--backoff", metavar="1s", help="Wait before the second attempt.")
    ] = None,
    backoff_factor: Annotated[
        float | None, typer.Option("--backoff-factor", min=1, help="Multiplies the wait for each further attempt.")
    ] = None,
    backoff_max: Annotated[
        str | None, typer.Option("--backoff-max", metavar="5m", help="The longest wait between attempts.")
    ] = None,
    delay: Annotated[
        bool | None, typer.Option("--delay/--no-delay", show_default=False, help="Deliver jobs at their times.")
    ] = None,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
) -> None:
    """Create a queue, or change its options: the topic if it is missing, and the configs of the share group.

    The group starts at the earliest record. Options that are not given keep their values.
    """
    from moldau.client.queues import Order, QueueOptions

    if order is not None and order not in tuple(Order):
        raise usage_error(f"--order {order}: use none or key")
    options = QueueOptions(
        max_attempts=max_attempts,
        lock_ms=_milliseconds(lock, "--lock"),
        dead_letters=dead_letters,
        order=None if order is None else Order(order),
        backoff_ms=_milliseconds(backoff, "--backoff"),
        backoff_factor=backoff_factor,
        backoff_max_ms=_milliseconds(backoff_max, "--backoff-max"),
        has_delays=delay,
    )
    _create(bootstrap_servers, topic, group or topic, options, partitions, replication_factor)


def _create(
    bootstrap_servers: str,
    topic: str,
    group: str,
    options: "QueueOptions",
    partitions: int,
    replication_factor: int,
) -> None:
    from moldau.cli.cluster_client import connect
    from moldau.client.queues import create_queue
    from moldau.model.errors import InvalidConfig

    configs = options.group_configs()
    with connect(bootstrap_servers) as client:
        try:
            is_new = create_queue(
                client, topic, group, configs, partitions=partitions, replication_factor=replication_factor
            )
        except InvalidConfig as error:
            raise CommandError(f"the cluster rejected the configs of group {group}: {error.message}") from error
    note(f"{'created' if is_new else 'found'} topic {topic}; it is a queue for the share group {group}")


def _milliseconds(text: str | None, option: str) -> int | None:
    return None if text is None else duration_ms(text, option)


@app.command("list")
def list_queues(bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT, json: Json = False) -> None:
    """List the share groups with the topics that they read and the jobs that are left."""
    from moldau.cli.queue_status import listed_queues

    rows = listed_queues(bootstrap_servers)
    if json:
        show_json([row._asdict() for row in rows])
    else:
        show_table(("group", "state", "topic", "jobs"), rows, numbers=("jobs",))


@app.command()
def put(
    topic: Topic,
    values: Annotated[list[str] | None, typer.Argument(metavar="[VALUE…]", show_default=False)] = None,
    group: Group = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Of all jobs.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="Add to every job; may be repeated."),
    ] = None,
    delay: Annotated[str | None, typer.Option("--delay", metavar="90s", help="Deliver them after this time.")] = None,
    at: Annotated[
        datetime | None, typer.Option("--at", metavar="TIME", help="Deliver them at this time (local time).")
    ] = None,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
) -> None:
    """Put jobs into a queue: the arguments, or each line of standard input."""
    from moldau.cli.queue_jobs import put_jobs

    put_jobs(
        bootstrap_servers,
        in_utf8(topic, "TOPIC"),
        in_utf8(group or topic, "--group"),
        values,
        key,
        pairs(header, "--header"),
        None if delay is None else duration_ms(delay, "--delay") / 1000,
        None if at is None else at.astimezone(),
    )


@app.command()
def take(
    topic: Topic,
    group: Group = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after this many jobs.")] = None,
    command: Annotated[
        str | None,
        typer.Option(
            "--exec", metavar="COMMAND", help="Run it in a shell for each job, with the value on standard input."
        ),
    ] = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", min=1, max=256, help="With --exec: so many at the same time.")
    ] = 1,
    reject_on: Annotated[
        list[int] | None, typer.Option("--reject-on", metavar="CODE", help="Exit code that rejects; default 65.")
    ] = None,
    ack: Annotated[bool, typer.Option("--ack", help="Print and acknowledge the jobs without a question.")] = False,
    idle: Annotated[
        str | None, typer.Option("--idle", metavar="5s", help="Stop after this long without a job.")
    ] = None,
    grace: Annotated[str, typer.Option("--grace", metavar="30s", help="On Ctrl-C: wait for running commands.")] = "30s",
    template: Annotated[str, typer.Option("--format", metavar="TEXT", help="As of `moldau consume`.")] = "%v",
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
) -> None:
    """Take jobs as a member of the group: ask what to do with each, or run a command.

    Exit code 0 of the command acknowledges the job, 65 (or --reject-on) rejects it, any other code retries it. It gets
    MOLDAU_TOPIC, MOLDAU_PARTITION, MOLDAU_OFFSET, MOLDAU_KEY and MOLDAU_ATTEMPT.
    """
    from moldau.cli.queue_jobs import run_commands, take_jobs

    in_utf8(topic, "TOPIC")
    name = in_utf8(group or topic, "--group")
    idle_s = None if idle is None else duration_ms(idle, "--idle") / 1000
    if command is None:
        take_jobs(bootstrap_servers, topic, name, count, template, idle_s, acks=ack)
    elif ack:
        raise usage_error("--ack cannot be combined with --exec: the exit code decides")
    else:
        rejections = frozenset(reject_on or (65,))
        grace_s = duration_ms(grace, "--grace") / 1000
        run_commands(bootstrap_servers, topic, name, command, rejections, concurrency, count, idle_s, grace_s)


@app.command()
def status(
    topic: Topic,
    group: Group = None,
    watch: Annotated[
        str | None, typer.Option("--watch", "-w", metavar="2s", help="Repeat at this interval, with rates.")
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option("--metrics", metavar="URL", help="Metrics page of a broker, for in-flight jobs; may be repeated."),
    ] = None,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Show how many jobs are left, ready, in flight and dead, and the age of the oldest.

    The protocol has no request for jobs in flight: give the metrics pages of all brokers to see them.
    """
    from moldau.cli.queue_status import show_status

    watch_s = None if watch is None else duration_ms(watch, "--watch") / 1000
    show_status(bootstrap_servers, topic, group or topic, watch_s, metrics or [], is_json=json)


@app.command()
def peek(
    topic: Topic,
    group: Group = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Stop after this many jobs.")] = 10,
    template: Annotated[str, typer.Option("--format", metavar="TEXT", help="As of `moldau consume`.")] = "%v",
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
) -> None:
    """Print the first records that the group has not finished, without taking them.

    Among them may be jobs that are in flight, and jobs that were finished out of order.
    """
    from moldau.cli.queue_status import peek_jobs

    peek_jobs(bootstrap_servers, topic, group or topic, count, template)


@app.command()
def delete(
    topic: Topic,
    group: Group = None,
    with_topic: Annotated[bool, typer.Option("--with-topic", help="Delete the topic too, for all groups.")] = False,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
) -> None:
    """Delete the share group of a queue, its offsets and configs; the topic stays unless --with-topic is given."""
    from moldau.cli.cluster_client import connect
    from moldau.client.queues import delete_queue

    name = group or topic
    with connect(bootstrap_servers) as client:
        delete_queue(client, topic, name, with_topic=with_topic)
    note(f"deleted the share group {name}" + (f" and topic {topic}" if with_topic else f"; topic {topic} is kept"))
