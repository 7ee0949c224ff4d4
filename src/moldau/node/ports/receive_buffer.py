"""Where received bytes land: a buffer per connection that grows while it is busy, and one budget for all of them."""

from collections import deque
from collections.abc import Callable
from typing import Final

from moldau.model.units import KiB, MiB

IDLE_BYTES: Final = 16 * KiB
BUSY_BYTES: Final = 1 * MiB
POOLED_MAX: Final = 16


class ReceiveBudget:
    """How many bytes all receive buffers of a node may hold beyond their idle size.

    When it is spent, connections that need more wait in line. The first in line may always go on, over the budget if it
    must: so whole frames get through and buffers come free, and the excess is bounded by one frame.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_used = 0
        self._waiting: deque[tuple[ReceiveBuffer, Callable[[], None]]] = deque()
        self._favoured: ReceiveBuffer | None = None
        self._idle_pool: list[memoryview] = []
        self._busy_pool: list[memoryview] = []

    def take(self, buffer: "ReceiveBuffer", extra_bytes: int, when_free: Callable[[], None]) -> bool:
        """Whether `buffer` may grow now; if not, `when_free` is called once it may try again."""
        if self.bytes_used + extra_bytes <= self.bytes_max or self._favoured in (None, buffer):
            if self.bytes_used + extra_bytes > self.bytes_max:
                self._favoured = buffer
            self.bytes_used += extra_bytes
            return True
        self._waiting.append((buffer, when_free))
        return False

    def give_back(self, buffer: "ReceiveBuffer", extra_bytes: int) -> None:
        self.bytes_used -= extra_bytes
        if self._favoured is buffer:
            self._favoured = None
        while self._waiting and (self._favoured is None or self.bytes_used < self.bytes_max):
            _, when_free = self._waiting.popleft()
            when_free()

    def forget(self, buffer: "ReceiveBuffer") -> None:
        self._waiting = deque(entry for entry in self._waiting if entry[0] is not buffer)

    def borrow_small(self) -> memoryview:
        """A buffer of the idle size."""
        pool = self._idle_pool
        return pool.pop() if pool else memoryview(bytearray(IDLE_BYTES))

    def put_away_small(self, buffer: memoryview) -> None:
        if len(self._idle_pool) < POOLED_MAX:
            self._idle_pool.append(buffer)

    def borrow(self, size: int) -> memoryview:
        pool = self._pool(size)
        return pool.pop() if pool else memoryview(bytearray(size))

    def put_away(self, buffer: memoryview) -> None:
        pool = self._pool(len(buffer))
        if pool is not None and len(pool) < POOLED_MAX:
            pool.append(buffer)

    def _pool(self, size: int) -> list[memoryview] | None:
        return self._idle_pool if size == IDLE_BYTES else self._busy_pool if size == BUSY_BYTES else None


_NOTHING: Final = memoryview(b"")


class ReceiveBuffer:
    """Received bytes `view[start:end]` and room behind them.

    An idle connection has none. A small buffer comes with the first bytes; a read that fills it is taken as the sign of
    a busy connection and makes it large, until many reads in a row would have fitted the small one. A frame larger than
    that is given room as its bytes come, never on its word.
    """

    __slots__ = ("_budget", "_capacity", "_extra_bytes", "_quiet_reads", "_was_filled", "end", "start", "view")

    QUIET_READS_MAX: Final = 64

    def __init__(self, budget: ReceiveBudget) -> None:
        self._budget = budget
        self._extra_bytes = 0
        self._quiet_reads = 0
        self._was_filled = False
        self.start = 0
        self.end = 0
        self.view = _NOTHING
        self._capacity = 0

    def room(self) -> memoryview:
        """Where the next bytes go; never empty."""
        if self._was_filled:
            self._was_filled = False
            if self._capacity < BUSY_BYTES:
                self._become_busy()
        if not self._capacity:
            self.view = self._budget.borrow_small()
            self._capacity = IDLE_BYTES
            return self.view
        if self.end == self._capacity:
            self._compact()
        return self.view[self.end :]

    def took(self, count: int) -> None:
        self.end += count
        if self.end == self._capacity:
            self._was_filled = True
            self._quiet_reads = 0
        elif count <= IDLE_BYTES:
            self._quiet_reads += 1
        else:
            self._quiet_reads = 0

    def expect(self, frame_bytes: int, when_free: Callable[[], None]) -> bool:
        """Prepare for the rest of a frame that has begun; False when the budget makes it wait."""
        capacity = self._capacity
        if frame_bytes <= capacity:
            if self.start + frame_bytes > capacity:
                self._compact()
            return True
        if self.end - self.start < capacity:
            return True  # there is room for some of it; it grows when that is full
        wanted = min(frame_bytes, max(2 * capacity, BUSY_BYTES))
        if not self._budget.take(self, wanted - capacity, when_free):
            return False
        self._extra_bytes += wanted - capacity
        self._move_to(self._budget.borrow(wanted))
        return True

    def missing(self, frame_bytes: int) -> int:
        """How much of a frame that has begun is still to come, as far as there is room for it."""
        return min(frame_bytes - (self.end - self.start), self._capacity - self.end)

    def tidy(self) -> None:
        """After the frames were handed out: start at the front again, and shrink when it has been quiet."""
        if self.start != self.end:
            return
        self.start = self.end = 0
        capacity = self._capacity
        if capacity == IDLE_BYTES and not self._was_filled:
            self._budget.put_away_small(self.view)
            self.view = _NOTHING
            self._capacity = 0
            return
        if capacity == BUSY_BYTES and self._quiet_reads <= self.QUIET_READS_MAX:
            return
        if not self._was_filled or capacity > BUSY_BYTES:
            self._let_go()

    def release(self) -> None:
        """The connection is gone."""
        self._budget.forget(self)
        self._let_go()

    def _let_go(self) -> None:
        self._budget.put_away(self.view)
        self._hold(_NOTHING)
        self._quiet_reads = 0
        if self._extra_bytes:
            extra_bytes, self._extra_bytes = self._extra_bytes, 0
            self._budget.give_back(self, extra_bytes)

    def _become_busy(self) -> None:
        extra_bytes = BUSY_BYTES - self._capacity
        if self._budget.bytes_used + extra_bytes <= self._budget.bytes_max:
            self._budget.bytes_used += extra_bytes
            self._extra_bytes += extra_bytes
            self._move_to(self._budget.borrow(BUSY_BYTES))

    def _compact(self) -> None:
        have = self.end - self.start
        self.view[:have] = self.view[self.start : self.end]
        self.start, self.end = 0, have

    def _move_to(self, larger: memoryview) -> None:
        old, start, end = self.view, self.start, self.end
        self._hold(larger)
        self.end = end - start
        larger[: self.end] = old[start:end]
        self._budget.put_away(old)

    def _hold(self, buffer: memoryview) -> None:
        self.view = buffer
        self._capacity = len(buffer)
        self.start = self.end = 0
