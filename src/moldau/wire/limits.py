"""Limits on the memory that a peer can make a node allocate."""

from typing import Final

# Elements of all arrays of one message together. Requests come from untrusted clients, responses from known brokers.
REQUEST_ELEMENTS_MAX: Final = 50_000
RESPONSE_ELEMENTS_MAX: Final = 8_000_000

# Tagged fields in one tag section. Kafka has never used more than four.
TAGS_MAX: Final = 1024

# Kafka's own bound on a string, in UTF-8 bytes.
STRING_BYTES_MAX: Final = 0x7FFF

# A body with records is copied for faster parsing up to this size, and parsed in place above it.
COPIED_BYTES_MAX: Final = 16 * 1024
