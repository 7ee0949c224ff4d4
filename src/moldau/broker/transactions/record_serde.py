"""Encodes and decodes records of `__transaction_state` in Kafka's format, which its tools read."""

import logging
from collections.abc import Callable
from typing import Final

from moldau.machines.transactions.records import Record
from moldau.wire.data_records import decode_transaction_record, encode_coordinator_key, encode_versioned
from moldau.wire.messages import TransactionLogValue
from moldau.wire.primitives import Malformed

logger = logging.getLogger(__name__)

PLAIN: Final = 0
TAGGED: Final = 1  # with previous and next producer id, and the client's transaction version
NO_ID: Final = -1


class TransactionCoding:
    """Keys and values of transactions. `level` is the cluster's transaction.version: from 1 on, tags may be written."""

    def __init__(self, level: Callable[[], int]) -> None:
        self._level = level

    def encode(self, record: Record) -> tuple[bytes, bytes | None]:
        key, value = record
        return encode_coordinator_key(key), None if value is None else encode_versioned(value, self._version(value))

    def _version(self, value: TransactionLogValue) -> int:
        """Version 0 allows a downgrade; values with tagged fields need version 1."""
        has_tags = value.previous_producer_id != NO_ID or value.next_producer_id != NO_ID
        return TAGGED if has_tags or value.client_transaction_version or self._level() >= 1 else PLAIN

    def decode(self, key: bytes, value: bytes | None) -> Record | None:
        """Return None for a record of an unknown type or version, as Kafka does."""
        try:
            return decode_transaction_record(key, value)
        except Malformed as error:
            logger.warning("Ignoring a record of __transaction_state: %s", error)
            return None
