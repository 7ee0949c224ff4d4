"""The four codecs in the framing that Kafka's clients use, and decompression that cannot be made to explode.

gzip may have several members, zstd several frames, lz4 is the frame format with independent blocks, and snappy
comes raw (librdkafka) or in the chunks of the Java library (xerial).
"""

import mmap
from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from typing import Final

import cramjam

from moldau.model.errors import CorruptMessage, MessageTooLarge, UnsupportedCompressionType
from moldau.model.units import KiB, MiB
from moldau.records.header import Buffer

OUTPUT_BYTES_MAX: Final = 100 * MiB  # what one batch may decompress to, where the caller names no other bound

_ZSTD_LEVEL: Final = 3
_GZIP_LEVEL: Final = 6
_LZ4_LEVEL: Final = 9  # Kafka's default, which there means the fast compressor; all others are its slow one
_LZ4_FAST_LEVEL: Final = 1

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"  # version, oldest compatible version
_XERIAL_CHUNK_BYTES: Final = 32 * KiB
_CHUNK_LENGTH: Final = Struct(">i")
_SNAPPY_RATIO_MAX: Final = 32  # three bytes of snappy copy at most 64, so a larger claim is a lie

_FIRST_GUESS_RATIO: Final = 6
_FIRST_GUESS_BYTES: Final = 64 * KiB
_FULL: Final = ("whole buffer", "too small")  # how cramjam says that the output did not fit


class Compression(IntEnum):
    """The codec of a batch, by its id in the attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: int, content: Buffer, level: int | None = None) -> bytes:
    """Compress for any Kafka client. `level` is the codec's own; snappy has none."""
    match codec:
        case Compression.NONE:
            return bytes(content)
        case Compression.GZIP:
            return bytes(cramjam.gzip.compress(content, level=_GZIP_LEVEL if level is None or level < 0 else level))
        case Compression.SNAPPY:
            return _compress_xerial(content)
        case Compression.LZ4:
            return _compress_lz4(content, _LZ4_FAST_LEVEL if level in (None, _LZ4_LEVEL) else level)
        case Compression.ZSTD:
            return bytes(cramjam.zstd.compress(content, level=_ZSTD_LEVEL if level is None else level))
        case _:
            raise _unknown(codec)


def decompress(codec: int, content: Buffer, output_bytes_max: int = OUTPUT_BYTES_MAX) -> bytes:
    """Decompress into at most `output_bytes_max` bytes: MessageTooLarge beyond, CorruptMessage for what is no stream.

    Memory grows with what comes out, never with what the input claims.
    """
    match codec:
        case Compression.NONE:
            return _copy(content, output_bytes_max)
        case Compression.GZIP:
            return _decompress_stream("gzip", cramjam.gzip.decompress_into, content, output_bytes_max)
        case Compression.SNAPPY:
            return _decompress_snappy(memoryview(content), output_bytes_max)
        case Compression.LZ4:
            return _decompress_stream("lz4", cramjam.lz4.decompress_into, content, output_bytes_max)
        case Compression.ZSTD:
            return _decompress_stream("zstd", cramjam.zstd.decompress_into, content, output_bytes_max)
        case _:
            raise _unknown(codec)


def _unknown(codec: int) -> UnsupportedCompressionType:
    return UnsupportedCompressionType(f"codec {codec} is none of gzip (1), snappy (2), lz4 (3), zstd (4)")


def _too_large(name: str, output_bytes_max: int) -> MessageTooLarge:
    return MessageTooLarge(f"the {name} records are larger than {output_bytes_max} bytes when decompressed")


def _copy(content: Buffer, output_bytes_max: int) -> bytes:
    if len(content) > output_bytes_max:
        raise _too_large("plain", output_bytes_max)
    return bytes(content)


def _compress_lz4(content: Buffer, level: int | None) -> bytes:
    # The Java client refuses linked blocks.
    compressor = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
    compressor.compress(content)
    return bytes(compressor.finish())


def _compress_xerial(content: Buffer) -> bytes:
    view = memoryview(content)
    pieces = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_CHUNK_BYTES):
        chunk = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_CHUNK_BYTES]))
        pieces += (_CHUNK_LENGTH.pack(len(chunk)), chunk)
    return b"".join(pieces)


_DecompressInto = Callable[[Buffer, bytearray | mmap.mmap], int]


def _decompress_stream(name: str, into: _DecompressInto, content: Buffer, output_bytes_max: int) -> bytes:
    guess = max(_FIRST_GUESS_BYTES, len(content) * _FIRST_GUESS_RATIO)
    if guess < output_bytes_max:
        out = bytearray(guess)
        try:
            produced = into(content, out)
        except cramjam.DecompressionError:
            pass  # too small, or corrupt: the second run tells
        else:
            return bytes(memoryview(out)[:produced])
    return _decompress_bounded(name, into, content, output_bytes_max)


def _decompress_bounded(name: str, into: _DecompressInto, content: Buffer, output_bytes_max: int) -> bytes:
    # Only the pages that are written take memory, so a small input cannot make us pay for the whole bound.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with mmap.mmap(-1, max(1, output_bytes_max), flags=flags) as out:
        try:
            produced = into(content, out)
        except cramjam.DecompressionError as error:
            words = str(error)
            if any(full in words for full in _FULL):
                raise _too_large(name, output_bytes_max) from None
            raise CorruptMessage(f"the records are no {name} stream: {words}") from None
        if produced > output_bytes_max:
            raise _too_large(name, output_bytes_max)
        return out[:produced]


def _decompress_snappy(content: memoryview, output_bytes_max: int) -> bytes:
    if bytes(content[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _decompress_raw_snappy(content, output_bytes_max)
    # The two versions are not looked at: some producers write them in the wrong byte order.
    pieces = []
    produced = 0
    position = len(_XERIAL_HEADER)
    while position < len(content):
        start = position + _CHUNK_LENGTH.size
        if start > len(content):
            raise CorruptMessage("the snappy stream ends inside the length of a chunk")
        position = start + _CHUNK_LENGTH.unpack_from(content, position)[0]
        if not start < position <= len(content):
            raise CorruptMessage(f"a snappy chunk of {position - start} bytes, {len(content) - start} are left")
        piece = _decompress_raw_snappy(content[start:position], output_bytes_max, produced)
        produced += len(piece)
        pieces.append(piece)
    return b"".join(pieces)


def _decompress_raw_snappy(content: memoryview, output_bytes_max: int, produced: int = 0) -> bytes:
    try:
        claimed = cramjam.snappy.decompress_raw_len(content)
        if claimed > len(content) * _SNAPPY_RATIO_MAX:
            raise CorruptMessage(f"{len(content)} bytes of snappy cannot hold {claimed}")
        if produced + claimed > output_bytes_max:
            raise _too_large("snappy", output_bytes_max)
        return bytes(cramjam.snappy.decompress_raw(content))
    except cramjam.DecompressionError as error:
        raise CorruptMessage(f"the records are no snappy stream: {error}") from None
