"""The four codecs in the framing of Kafka's clients, with decompression of bounded size.

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

OUTPUT_BYTES_MAX: Final = 100 * MiB  # default bound of a decompressed batch

_ZSTD_LEVEL: Final = 3
_GZIP_LEVEL: Final = 6
_LZ4_LEVEL: Final = 9  # Kafka's default, which selects the fast compressor; all other levels select the slow one
_LZ4_FAST_LEVEL: Final = 1

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"  # version, oldest compatible version
_XERIAL_CHUNK_BYTES: Final = 32 * KiB
_CHUNK_LENGTH: Final = Struct(">i")
_SNAPPY_RATIO_MAX: Final = 32  # three bytes of snappy expand to at most 64

_FIRST_GUESS_RATIO: Final = 6
_FIRST_GUESS_BYTES: Final = 64 * KiB
_FULL: Final = ("whole buffer", "too small")  # cramjam's error texts if the output does not fit


class Compression(IntEnum):
    """The codec of a batch, by its id in the attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: int, content: Buffer, level: int | None = None) -> bytes:
    """Compress in a form that every Kafka client reads. `level` is specific to the codec; snappy has none."""
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
    """Decompress to at most `output_bytes_max` bytes: MessageTooLarge beyond, CorruptMessage for an invalid stream.

    Memory grows with the actual output, never with the size that the input announces.
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
    return UnsupportedCompressionType(f"unknown codec {codec}: must be gzip (1), snappy (2), lz4 (3) or zstd (4)")


def _too_large(name: str, output_bytes_max: int) -> MessageTooLarge:
    return MessageTooLarge(f"the {name} records exceed {output_bytes_max} bytes when decompressed")


def _copy(content: Buffer, output_bytes_max: int) -> bytes:
    if len(content) > output_bytes_max:
        raise _too_large("plain", output_bytes_max)
    return bytes(content)


def _compress_lz4(content: Buffer, level: int | None) -> bytes:
    # The Java client rejects linked blocks.
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
            pass  # too small, or corrupt: the bounded run distinguishes them
        else:
            return bytes(memoryview(out)[:produced])
    return _decompress_bounded(name, into, content, output_bytes_max)


def _decompress_bounded(name: str, into: _DecompressInto, content: Buffer, output_bytes_max: int) -> bytes:
    # Only written pages take memory, so a small input does not allocate the whole bound.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with mmap.mmap(-1, max(1, output_bytes_max), flags=flags) as out:
        try:
            produced = into(content, out)
        except cramjam.DecompressionError as error:
            text = str(error)
            if any(full in text for full in _FULL):
                raise _too_large(name, output_bytes_max) from None
            raise CorruptMessage(f"invalid {name} stream: {text}") from None
        if produced > output_bytes_max:
            raise _too_large(name, output_bytes_max)
        return out[:produced]


def _decompress_snappy(content: memoryview, output_bytes_max: int) -> bytes:
    if bytes(content[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _decompress_raw_snappy(content, output_bytes_max)
    # Ignore the two versions: some producers write them in the wrong byte order.
    pieces = []
    produced = 0
    position = len(_XERIAL_HEADER)
    while position < len(content):
        start = position + _CHUNK_LENGTH.size
        if start > len(content):
            raise CorruptMessage("the snappy stream ends inside the length of a chunk")
        position = start + _CHUNK_LENGTH.unpack_from(content, position)[0]
        if not start < position <= len(content):
            raise CorruptMessage(f"snappy chunk of {position - start} bytes, but {len(content) - start} are left")
        piece = _decompress_raw_snappy(content[start:position], output_bytes_max, produced)
        produced += len(piece)
        pieces.append(piece)
    return b"".join(pieces)


def _decompress_raw_snappy(content: memoryview, output_bytes_max: int, produced: int = 0) -> bytes:
    try:
        announced = cramjam.snappy.decompress_raw_len(content)
        if announced > len(content) * _SNAPPY_RATIO_MAX:
            raise CorruptMessage(f"{len(content)} bytes of snappy cannot expand to {announced}")
        if produced + announced > output_bytes_max:
            raise _too_large("snappy", output_bytes_max)
        return bytes(cramjam.snappy.decompress_raw(content))
    except cramjam.DecompressionError as error:
        raise CorruptMessage(f"invalid snappy stream: {error}") from None
