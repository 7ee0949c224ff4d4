"""Kafka's default partitioner (murmur2), for thousands of keys at once."""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from moldau.client.partitioner import murmur2
from pyspark_moldau.codec.record_fields import Numbers, Octets

_SEED: Final = np.uint32(0x9747B28C)
_FACTOR: Final = np.uint32(0x5BD1E995)
_SHORT_BYTES_MAX: Final = 64  # longer keys are hashed one by one: in a matrix, one of them would widen all rows


def partitions_of(keys: pa.Array, partitions: int) -> Numbers:
    """Return the partition of each key; keys must not be null."""
    bounds = np.frombuffer(keys.buffers()[1], np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    content = keys.buffers()[2]
    octets = np.frombuffer(content, np.uint8) if content is not None else np.zeros(0, np.uint8)
    return (hashes(octets, bounds[:-1], np.diff(bounds)) & np.uint32(0x7FFFFFFF)).astype(np.int64) % partitions


def hashes(octets: Octets, starts: Numbers, lengths: Numbers) -> npt.NDArray[np.uint32]:
    """Hash consecutive pieces of `octets`."""
    found = np.empty(len(starts), np.uint32)
    is_short = lengths <= _SHORT_BYTES_MAX
    short, long = np.flatnonzero(is_short), np.flatnonzero(~is_short)
    if len(short):
        found[short] = _hashes_of_short(octets, starts[short], lengths[short])
    for row in long.tolist():
        found[row] = murmur2(octets[starts[row] : starts[row] + lengths[row]].tobytes())
    return found


def _hashes_of_short(octets: Octets, starts: Numbers, lengths: Numbers) -> npt.NDArray[np.uint32]:
    words = _words(octets, starts, lengths)
    digest = _SEED ^ lengths.astype(np.uint32)
    whole = lengths >> 2
    for index in range(int(whole.max())):
        word = words[:, index] * _FACTOR
        word ^= word >> np.uint32(24)
        mixed = (digest * _FACTOR) ^ (word * _FACTOR)
        digest = np.where(index < whole, mixed, digest)
    rest = words[np.arange(len(words)), np.minimum(whole, words.shape[1] - 1)]
    digest = np.where(lengths & 3, (digest ^ rest) * _FACTOR, digest)
    digest ^= digest >> np.uint32(13)
    digest *= _FACTOR
    return digest ^ (digest >> np.uint32(15))


def _words(octets: Octets, starts: Numbers, lengths: Numbers) -> npt.NDArray[np.uint32]:
    """Return the little-endian words of each key, zero-padded."""
    longest = int(lengths.max())
    width = max(-(-longest // 4), 1) * 4
    if not longest:
        return np.zeros((len(starts), width // 4), np.uint32)
    if (
        int(starts[-1] - starts[0]) == longest * (len(starts) - 1) and lengths.min() == longest
    ):  # keys are contiguous and of equal length
        matrix = np.zeros((len(starts), width), np.uint8)
        matrix[:, :longest] = octets[starts[0] : starts[0] + longest * len(starts)].reshape(-1, longest)
        return matrix.view("<u4")
    columns = np.arange(width)
    matrix = octets.take(starts[:, None] + columns, mode="clip")
    matrix[columns >= lengths[:, None]] = 0
    return matrix.view("<u4")
