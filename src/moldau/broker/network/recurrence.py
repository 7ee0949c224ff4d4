"""Members of groups say that they live, in the same words each time, and mostly hear the same answer.

A request of such an API that is an earlier one word for word, but for its correlation id, is not taken apart again: its
handler left behind what does the same thing once more. If that says that the answer stands, the earlier one is sent.
"""

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final

from moldau.broker.runtime.meters import ApiMeter
from moldau.model.ports import FileSlice, Piece

FRAME_BYTES_MAX: Final = 1024
KNOWN_MAX: Final = 8  # requests remembered of one connection
HEAD_BYTES: Final = 8  # API, version and correlation id

Again = Callable[[float], bool]  # does at this time what was done before; whether the answer is the same

_read_head = Struct(">4si").unpack_from
_pack_correlation = Struct(">i").pack_into
_CORRELATION_POSITION: Final = 4  # in an answer, behind its length


class Recurring:
    """One request that came before: how it is done again, and what it is answered."""

    __slots__ = ("again", "answer", "meter")

    def __init__(self, again: Again, answer: bytearray, meter: ApiMeter) -> None:
        self.again = again
        self.answer = answer
        self.meter = meter


class Recurrence:
    """The requests that one connection is known to send again and again."""

    __slots__ = ("_known", "in_a_row")

    def __init__(self) -> None:
        self.in_a_row = 0  # of them, since something else was asked
        self._known: dict[bytes, Recurring] = {}

    def find(self, frame: memoryview) -> Recurring | None:
        return self._known.get(_words(frame)) if HEAD_BYTES <= len(frame) <= FRAME_BYTES_MAX else None

    def learn(self, frame: memoryview, again: Again, pieces: Sequence[Piece], meter: ApiMeter) -> None:
        if len(frame) > FRAME_BYTES_MAX:
            return
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        answer = bytearray().join(piece for piece in pieces if not isinstance(piece, FileSlice))
        self._known[_words(frame)] = Recurring(again, answer, meter)


def answer_to(frame: memoryview, known: Recurring) -> bytearray:
    """The earlier answer, for the request in this frame."""
    answer = known.answer.copy()  # the one before may still wait to be sent
    _, correlation_id = _read_head(frame)
    _pack_correlation(answer, _CORRELATION_POSITION, correlation_id)
    return answer


def _words(frame: memoryview) -> bytes:
    """All of a request but its correlation id."""
    return frame[:4].tobytes() + frame[HEAD_BYTES:].tobytes()
