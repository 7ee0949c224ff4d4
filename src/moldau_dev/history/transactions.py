"""Checks of transactions: atomic, without cyclic information flow, each input processed once."""

from collections.abc import Iterator

from moldau_dev.history.anomalies import Anomaly, Name
from moldau_dev.history.attempts import Attempt, Send
from moldau_dev.history.contents import Contents

Graph = dict[int, dict[int, None]]


def torn_transactions(contents: Contents, *, is_complete: bool) -> Iterator[Anomaly]:
    """Find transactions of which some records were read and others never will be.

    That is certain for a record if a later read returned a record whose send began after the transaction was seen, and
    for every unread record of a complete history.
    """
    first_read, latest_begin = _first_reads(contents), _latest_begins(contents)
    for attempt in contents.attempts:
        if attempt.f != "txn":
            continue
        reads = [first_read[each] for send in attempt.sends if (each := (send.key, send.value)) in first_read]
        if not reads:
            continue
        for send in attempt.sends:
            if (send.key, send.value) in first_read:
                continue
            if is_complete or latest_begin.get(send.key, -1) > min(reads):
                seen = f"{send.value!r} of a transaction of {attempt.process} was not read, {len(reads)} others were"
                yield Anomaly(Name.TORN_TRANSACTION, send.key, seen)


def _first_reads(contents: Contents) -> dict[tuple[str, int | str], int]:
    """Return the time of the first read of each record."""
    first: dict[tuple[str, int | str], int] = {}
    for attempt, key, (_, value) in contents.ok_reads():
        place = (key, value)
        first[place] = min(first.get(place, attempt.completed), attempt.completed)
    return first


def _latest_begins(contents: Contents) -> dict[str, int]:
    """Return the latest start of a write that was read, by key."""
    latest: dict[str, int] = {}
    for _, key, (_, value) in contents.ok_reads():
        writer = contents.writers.get((key, value))
        if writer is not None:
            latest[key] = max(latest.get(key, -1), writer.invoked)
    return latest


def circular_flows(contents: Contents, *, counts_writes: bool) -> Iterator[Anomaly]:
    """G1c: find cycles of transactions that read each other's writes.

    Kafka interleaves the records of transactions, so the order of writes counts only with `counts_writes`.
    """
    graph = _read_edges(contents)
    if counts_writes:
        _add_write_edges(contents, graph)
    for cycle in _cycles(graph):
        yield Anomaly(Name.G1C, "-", f"the transactions started at {sorted(cycle)} depend on each other")


def _read_edges(contents: Contents) -> Graph:
    graph: Graph = {}
    for reader, key, (_, value) in contents.ok_reads():
        writer = contents.writers.get((key, value))
        if reader.f == "txn" and writer is not None and writer.f == "txn" and writer is not reader:
            graph.setdefault(writer.invoked, {})[reader.invoked] = None
    return graph


def _add_write_edges(contents: Contents, graph: Graph) -> None:
    for key, values_at in contents.values_at.items():
        before: Attempt | None = None
        for offset in contents.known_offsets[key]:
            writer = contents.writers.get((key, next(iter(values_at[offset]))))
            if writer is None or writer.f != "txn":
                continue
            if before is not None and before is not writer:
                graph.setdefault(before.invoked, {})[writer.invoked] = None
            before = writer


def _cycles(graph: Graph) -> Iterator[list[int]]:
    """Strongly connected parts of more than one: Tarjan's way, with a stack of our own."""
    order: dict[int, int] = {}
    lowest: dict[int, int] = {}
    part: dict[int, None] = {}
    for root in graph:
        if root in order:
            continue
        order[root] = lowest[root] = len(order)
        part[root] = None
        path = [(root, iter(graph.get(root, {})))]
        while path:
            node, successors = path[-1]
            for successor in successors:
                if successor not in order:
                    order[successor] = lowest[successor] = len(order)
                    part[successor] = None
                    path.append((successor, iter(graph.get(successor, {}))))
                    break
                if successor in part:
                    lowest[node] = min(lowest[node], order[successor])
            else:
                path.pop()
                if path:
                    lowest[path[-1][0]] = min(lowest[path[-1][0]], lowest[node])
                if lowest[node] == order[node] and len(circle := _cut_part(part, node)) > 1:
                    yield circle


def _cut_part(part: dict[int, None], node: int) -> list[int]:
    circle: list[int] = []
    while node not in circle:
        circle.append(part.popitem()[0])
    return circle


def exactly_once(contents: Contents, *, is_complete: bool) -> Iterator[Anomaly]:
    """Transactions that turn what they read into what they send: every input is used by one of them, and only one."""
    uses: dict[str, dict[int | str, int]] = {}
    for attempt in contents.attempts:
        if attempt.f == "txn" and attempt.sends and attempt.polls and contents.is_visible(attempt):
            for key, (_, value) in attempt.reads():
                used = uses.setdefault(key, {})
                used[value] = used.get(value, 0) + 1
    for key, used in uses.items():
        for value, count in used.items():
            if count > 1:
                yield Anomaly(Name.NOT_EXACTLY_ONCE, key, f"{value!r} was used by {count} transactions")
    if is_complete:
        yield from (_unused(send) for _, send in contents.acknowledged() if _is_unused(uses, send))


def _is_unused(uses: dict[str, dict[int | str, int]], send: Send) -> bool:
    return send.key in uses and send.value not in uses[send.key]


def _unused(send: Send) -> Anomaly:
    return Anomaly(Name.NOT_EXACTLY_ONCE, send.key, f"{send.value!r} was used by no transaction")
