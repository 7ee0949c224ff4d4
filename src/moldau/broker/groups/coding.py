"""How records of groups stand in `__consumer_offsets`: as Kafka writes them, so that its tools read them."""

import logging

from moldau.machines.groups.records import Record, record_version
from moldau.wire.data_records import decode_group_record, encode_coordinator_key, encode_versioned
from moldau.wire.primitives import Malformed

logger = logging.getLogger(__name__)


class GroupCoding:
    """Keys and values of groups and offsets."""

    def encode(self, record: Record) -> tuple[bytes, bytes | None]:
        key, value = record
        return encode_coordinator_key(key), None if value is None else encode_versioned(value, record_version(value))

    def decode(self, key: bytes, value: bytes | None) -> Record | None:
        """A record of a kind or version that is not known here is passed over, as Kafka does."""
        try:
            return decode_group_record(key, value)
        except Malformed as error:
            logger.warning("A record of the offsets topic is passed over: %s", error)
            return None
