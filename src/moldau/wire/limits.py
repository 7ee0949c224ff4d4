"""How much a peer may make us allocate: what no frame may exceed, however it is written."""

from typing import Final

# All elements of all arrays of one message together. A request comes from anybody; a response from a broker we chose.
REQUEST_ELEMENTS_MAX: Final = 50_000
RESPONSE_ELEMENTS_MAX: Final = 8_000_000

# Tagged fields in one tag section. Kafka has never used more than four.
TAGS_MAX: Final = 1024

# Kafka's own bound on a string, in UTF-8 bytes.
STRING_BYTES_MAX: Final = 0x7FFF

# A body that carries records is copied for faster parsing up to this size, and parsed where it lies above it.
COPIED_BYTES_MAX: Final = 16 * 1024
