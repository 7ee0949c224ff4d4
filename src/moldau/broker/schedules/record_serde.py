"""Encodes and decodes records of `__schedule_state`: the name of a schedule, and its state as JSON."""

import json
import logging

from moldau.machines.schedules import Record, ScheduleState

logger = logging.getLogger(__name__)

VERSION = 0


class ScheduleCoding:
    """The value has a version, by which a later format can be recognized."""

    def encode(self, record: Record) -> tuple[bytes, bytes | None]:
        name, state = record
        value = None if state is None else json.dumps({"version": VERSION, **state._asdict()}).encode()
        return name.encode(), value

    def decode(self, key: bytes, value: bytes | None) -> Record | None:
        """Return None for a record of another version."""
        if value is None:
            return key.decode(), None
        fields = json.loads(value)
        if fields.pop("version", None) != VERSION:
            logger.warning("Ignoring a record of __schedule_state for %s: unknown version", key.decode())
            return None
        return key.decode(), ScheduleState(**fields)
