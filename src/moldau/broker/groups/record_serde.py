"""Encodes and decodes records of `__consumer_offsets` in Kafka's format, which its tools read."""

import logging
from collections.abc import Sequence

from moldau.machines.groups.records import KeyedRecord, PendingOffset, Record, TransactionEnded, record_version
from moldau.records.builder import build_batch
from moldau.records.compression import Compression
from moldau.records.control import build_transaction_marker
from moldau.wire import messages
from moldau.wire.data_records import decode_group_record, encode_coordinator_key, encode_versioned
from moldau.wire.primitives import Malformed

logger = logging.getLogger(__name__)


class GroupCoding:
    """Keys and values of groups and offsets, and the batches of those that belong to transactions."""

    def build(self, records: Sequence[Record], now_ms: int, compression: Compression) -> bytearray:
        """One decision as a batch; a decision is of one kind."""
        first = records[0]
        if isinstance(first, TransactionEnded):
            return build_transaction_marker(
                is_commit=first.is_commit,
                producer_id=first.producer_id,
                producer_epoch=first.producer_epoch,
                coordinator_epoch=first.coordinator_epoch,
                timestamp_ms=now_ms,
            )
        keyed = [(now_ms, *self.encode(record), ()) for record in records]
        if not isinstance(first, PendingOffset):
            return build_batch(keyed, compression=compression)
        return build_batch(
            keyed,
            compression=compression,
            producer_id=first.producer_id,
            producer_epoch=first.producer_epoch,
            is_transactional=True,
        )

    def encode(self, record: Record) -> tuple[bytes, bytes | None]:
        assert not isinstance(record, TransactionEnded)  # it is a control record, which `build` makes
        key, value = (record.key, record.value) if isinstance(record, PendingOffset) else record
        return encode_coordinator_key(key), None if value is None else encode_versioned(value, record_version(value))

    def decode_pending(self, producer_id: int, producer_epoch: int, key: bytes, value: bytes) -> Record | None:
        """A record of a transaction that has not ended; only offsets are committed in one."""
        name, offset = self.decode(key, value) or (None, None)
        if not isinstance(name, messages.OffsetCommitKey) or not isinstance(offset, messages.OffsetCommitValue):
            return None
        return PendingOffset(producer_id, producer_epoch, name, offset)

    def decode(self, key: bytes, value: bytes | None) -> KeyedRecord | None:
        """Return None for a record of an unknown type or version, as Kafka does."""
        try:
            return decode_group_record(key, value)
        except Malformed as error:
            logger.warning("Ignoring a record of __consumer_offsets: %s", error)
            return None
