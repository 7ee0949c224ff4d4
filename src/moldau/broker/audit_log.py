"""The audit log: one JSON object per decision of the authorizer, at a bounded rate, in rotated files.

    {"time": "2026-01-01T12:00:00.000Z", "decision": "denied", "principal": "User:alice", "host": "10.0.0.1", …}

A line is written at once and is not synced: it survives the process, not a power loss. The rate is bounded so that
denied requests, which cost a client little, cannot fill the disk or slow down the node.
"""

import json
import logging
from datetime import UTC, datetime
from typing import Final, NamedTuple, Protocol

from moldau.broker.access import Client, Operation, Resource
from moldau.model.ports import Clock, Disk, File
from moldau.model.units import SECOND_MS

log = logging.getLogger(__name__)

BURST_SECONDS: Final = 10  # after a quiet time, the lines of so many seconds may be written at once
TEXT_CHARACTERS_MAX: Final = 500


class AuditLogSettings(NamedTuple):
    """The bounds of the log. An empty path turns it off."""

    path: str
    records_allowed: bool
    max_bytes: int
    files: int
    lines_per_second: int


class AuditedRequest(Protocol):
    """The request that needed a decision."""

    @property
    def api_key(self) -> int: ...

    @property
    def client_id(self) -> str | None: ...

    @property
    def listener(self) -> str: ...


class AuditLog:
    """Appends decisions to a file; `close` when the node stops."""

    def __init__(self, disk: Disk, clock: Clock, settings: AuditLogSettings) -> None:
        self._disk = disk
        self._clock = clock
        self._settings = settings
        self._file: File | None = None
        self._position = 0
        self._has_failed = False
        self._tokens = float(settings.lines_per_second * BURST_SECONDS)
        self._refilled_ms = clock.monotonic_ms()
        self._left_out = 0
        self.api_names: dict[int, str] = {}  # set once the handler table exists

    @property
    def records_allowed(self) -> bool:
        return self._settings.records_allowed

    def write(
        self, request: AuditedRequest, client: Client, operation: Operation, resource: Resource, *, is_allowed: bool
    ) -> None:
        """Record a decision, unless too many came before it."""
        if not self._settings.path or not self._takes_token():
            return
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(self._clock.wall_ms() / SECOND_MS, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
            + "Z",
            "decision": "allowed" if is_allowed else "denied",
            "principal": client.principal,
            "host": client.host,
            "operation": operation.name,
            "resource_type": resource.kind.name,
            "resource_name": resource.name[:TEXT_CHARACTERS_MAX],
            "api": self.api_names.get(request.api_key, str(request.api_key)),
            "listener": request.listener,
            "client_id": None if request.client_id is None else request.client_id[:TEXT_CHARACTERS_MAX],
        }
        if self._left_out:
            line["left_out_before"] = self._left_out
            self._left_out = 0
        self._append(json.dumps(line).encode() + b"\n")

    def _takes_token(self) -> bool:
        now_ms = self._clock.monotonic_ms()
        rate = self._settings.lines_per_second
        self._tokens = min(rate * BURST_SECONDS, self._tokens + (now_ms - self._refilled_ms) * rate / SECOND_MS)
        self._refilled_ms = now_ms
        if self._tokens < 1:
            self._left_out += 1
            return False
        self._tokens -= 1
        return True

    def _append(self, line: bytes) -> None:
        """A log that cannot be written must not keep requests from being decided."""
        try:
            file = self._open_file()
            if self._position and self._position + len(line) > self._settings.max_bytes:
                self._rotate()
                file = self._open_file()
            self._position += file.pwrite(line, self._position)
            self._has_failed = False
        except OSError as error:
            if not self._has_failed:
                log.error("Audit log %s cannot be written: %s", self._settings.path, error)
            self._has_failed = True

    def _open_file(self) -> File:
        if self._file is None:
            self._file = self._disk.open(self._settings.path, create=True)
            self._position = self._file.size()
        return self._file

    def _rotate(self) -> None:
        """Rename `path` to `path.1`, `path.1` to `path.2` and so on; the oldest file is replaced."""
        self.close()
        path, kept = self._settings.path, self._settings.files - 1
        if not kept:
            self._disk.unlink(path)
        for number in range(kept, 0, -1):
            older = path if number == 1 else f"{path}.{number - 1}"
            if self._disk.exists(older):
                self._disk.rename(older, f"{path}.{number}")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
