"""Histories for tests: written by hand, or by clients of a small correct log."""

import random
from typing import Any

from moldau_dev.history.anomalies import Report
from moldau_dev.history.attempts import pair
from moldau_dev.history.checker import check
from moldau_dev.history.operations import Kind, Operation

A, B = "t-0", "t-1"


class Notebook:
    """Lines in order; each method is one operation, or its invocation or completion."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def add(self, process: str, kind: Kind, f: str, value: Any = None) -> None:
        index = len(self.operations)
        self.operations.append(Operation(index, index * 1000, process, kind, f, value))

    def send(self, value: int, offset: int | None, *, key: str = A, process: str = "p", kind: Kind = Kind.OK) -> None:
        self.begin_send(value, key=key, process=process)
        self.end_send(value, offset, key=key, process=process, kind=kind)

    def begin_send(self, value: int, *, key: str = A, process: str = "p") -> None:
        self.add(process, Kind.INVOKE, "send", {"key": key, "value": value})

    def end_send(
        self, value: int, offset: int | None, *, key: str = A, process: str = "p", kind: Kind = Kind.OK
    ) -> None:
        self.add(process, kind, "send", {"key": key, "value": value, "offset": offset})

    def poll(self, *reads: tuple[int, int], key: str = A, process: str = "c") -> None:
        self.add(process, Kind.INVOKE, "poll")
        self.add(process, Kind.OK, "poll", {key: [list(read) for read in reads]} if reads else {})

    def transaction(self, *steps: list[Any], process: str = "t", kind: Kind = Kind.OK) -> None:
        """Sends as `["send", key, [offset, value]]`, polls with their results."""
        requested = [["send", step[1], step[2][1]] if step[0] == "send" else ["poll"] for step in steps]
        self.add(process, Kind.INVOKE, "txn", requested)
        self.add(process, kind, "txn", list(steps) if kind is Kind.OK else requested)

    def note(self, f: str, value: Any = None, *, process: str = "c") -> None:
        self.add(process, Kind.INVOKE, f, value)
        self.add(process, Kind.OK, f, value)

    def report(self, *, is_complete: bool = False, counts_writes: bool = False) -> Report:
        return check(pair(self.operations), is_complete=is_complete, counts_writes=counts_writes)

    def anomalies(self, **how: bool) -> list[str]:
        return list(self.report(**how).counts())


class RightLog:
    """Several keys; clients that pipeline, lose responses, crash, share a group and use transactions."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.notebook = Notebook()
        self.logs: dict[str, list[int | None]] = {A: [], B: []}  # None is a marker of a transaction
        self.stable: dict[str, int] = {A: 0, B: 0}
        self.under_way: list[tuple[str, str, int]] = []
        self.positions: dict[str, dict[str, int]] = {}
        self.committed = {A: 0, B: 0}
        self.value = 0

    def live(self, steps: int) -> Notebook:
        self.notebook.note("subscribe", {"group": "g", "topics": ["t"]}, process="g1")
        self.notebook.note("subscribe", {"group": "g", "topics": ["t"]}, process="g2")
        for _ in range(steps):
            self.rng.choice((self.begin, self.begin, self.end, self.end, self.read, self.share, self.transact))()
        while self.under_way:
            self.end()
        for _ in range(2):
            self.share()
        self.read_rest()
        return self.notebook

    def begin(self) -> None:
        self.value += 1
        key, process = self.rng.choice((A, B)), self.rng.choice(("p1", "p2"))
        self.notebook.begin_send(self.value, key=key, process=process)
        self.under_way.append((process, key, self.value))

    def end(self) -> None:
        """Append the oldest send of a client or not; its response may be lost."""
        if not self.under_way:
            return
        process, key, value = self.under_way.pop(0)
        fate = self.rng.random()
        if fate < 0.1:
            self.notebook.end_send(value, None, key=key, process=process, kind=Kind.FAIL)
            return
        if fate < 0.2:
            self.notebook.end_send(value, None, key=key, process=process, kind=Kind.INFO)
        if fate < 0.9:
            offset = self._append(key, value)
            if fate >= 0.2:
                self.notebook.end_send(value, offset if fate < 0.8 else -1, key=key, process=process)
        else:
            self.notebook.end_send(value, None, key=key, process=process, kind=Kind.INFO)

    def transact(self) -> None:
        """Read some records of one key and write to both, with a marker in each."""
        values = {A: self.value + 1, B: self.value + 2}
        self.value += 2
        fails = self.rng.random() < 0.3
        steps: list[list[Any]] = []
        for key, value in values.items():
            offset = len(self.logs[key])
            self.logs[key] += [None if fails else value, None]
            steps.append(["send", key, [offset, value]])
        self.notebook.transaction(*steps, process="t", kind=Kind.FAIL if fails else Kind.OK)

    def read(self) -> None:
        process = self.rng.choice(("c1", "c2"))
        if self.rng.random() < 0.1:
            self.positions.pop(process, None)
            self.notebook.note("crash", process=process)
        key = self.rng.choice((A, B))
        self._poll(process, key, self.positions.setdefault(process, {}).get(key, 0), self.rng.randint(1, 5))

    def share(self) -> None:
        """Rebalance: each member gets a key and resumes from the committed offset."""
        keys = self.rng.sample((A, B), 2)
        for process, key in zip(("g1", "g2"), keys, strict=True):
            self.notebook.note("assign", [], process=process)
            self.notebook.note("assign", [key], process=process)
            self._poll(process, key, self.committed[key], self.rng.randint(1, 5))
            if self.rng.random() < 0.7:
                self.committed[key] = self.positions[process][key]

    def read_rest(self) -> None:
        for process, key in (("g1", A), ("g2", B)):
            self.notebook.note("assign", [], process=process)
            self.notebook.note("assign", [key], process=process)
            self._poll(process, key, self.committed[key], 1 << 30)

    def _append(self, key: str, value: int) -> int:
        self.logs[key].append(value)
        return len(self.logs[key]) - 1

    def _poll(self, process: str, key: str, start: int, count: int) -> None:
        log = self.logs[key]
        reads = [(offset, value) for offset in range(start, len(log)) if (value := log[offset]) is not None][:count]
        self.notebook.poll(*reads, key=key, process=process)
        self.positions.setdefault(process, {})[key] = reads[-1][0] + 1 if reads else start
