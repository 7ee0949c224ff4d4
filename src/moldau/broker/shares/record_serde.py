"""Encodes and decodes records of `__share_group_state` in Kafka's format, which its tools read."""

import logging

from moldau.machines.share_state import Record
from moldau.wire.data_records import decode_share_state_record, encode_coordinator_key, encode_versioned
from moldau.wire.primitives import Malformed

logger = logging.getLogger(__name__)

VALUE_VERSION = 0


class ShareStateCoding:
    """Keys and values of snapshots and updates."""

    def encode(self, record: Record) -> tuple[bytes, bytes | None]:
        key, value = record
        return encode_coordinator_key(key), None if value is None else encode_versioned(value, VALUE_VERSION)

    def decode(self, key: bytes, value: bytes | None) -> Record | None:
        """Return None for a record of an unknown type or version, as Kafka does."""
        try:
            return decode_share_state_record(key, value)
        except Malformed as error:
            logger.warning("Ignoring a record of __share_group_state: %s", error)
            return None
