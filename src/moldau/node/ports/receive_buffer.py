"""Receive buffers: one per connection, which grows while the connection is busy, within a budget for the node."""

from collections import deque
from collections.abc import Callable
from typing import Final

from moldau.model.units import KiB, MiB

IDLE_BYTES: Final = 16 * KiB
BUSY_BYTES: Final = 1 * MiB
POOLED_MAX: Final = 16


class ReceiveBudget:
    """Limits the bytes that all receive buffers of a node may hold beyond their idle size.

    When the budget is exhausted, connections that need more wait in a FIFO queue. One connection at a time may exceed
    the budget, so that its frame completes and its buffer is released; the excess is bounded by one frame.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_used = 0
        self._waiting: deque[tuple[ReceiveBuffer, Callable[[], None]]] = deque()
        self._overdrawn: ReceiveBuffer | None = None
        self._idle_pool: list[memoryview] = []
        self._busy_pool: list[memoryview] = []

    def reserve(self, buffer: "ReceiveBuffer", extra_bytes: int, on_free: Callable[[], None]) -> bool:
        """Return whether `buffer` may grow now; if not, call `on_free` once it may try again."""
        if self.bytes_used + extra_bytes <= self.bytes_max or self._overdrawn in (None, buffer):
            if self.bytes_used + extra_bytes > self.bytes_max:
                self._overdrawn = buffer
            self.bytes_used += extra_bytes
            return True
        self._waiting.append((buffer, on_free))
        return False

    def refund(self, buffer: "ReceiveBuffer", extra_bytes: int) -> None:
        self.bytes_used -= extra_bytes
        if self._overdrawn is buffer:
            self._overdrawn = None
        while self._waiting and (self._overdrawn is None or self.bytes_used < self.bytes_max):
            _, on_free = self._waiting.popleft()
            on_free()

    def forget(self, buffer: "ReceiveBuffer") -> None:
        self._waiting = deque(entry for entry in self._waiting if entry[0] is not buffer)

    def borrow_idle(self) -> memoryview:
        """A buffer of the idle size."""
        pool = self._idle_pool
        return pool.pop() if pool else memoryview(bytearray(IDLE_BYTES))

    def return_idle(self, buffer: memoryview) -> None:
        if len(self._idle_pool) < POOLED_MAX:
            self._idle_pool.append(buffer)

    def borrow(self, size: int) -> memoryview:
        pool = self._pool(size)
        return pool.pop() if pool else memoryview(bytearray(size))

    def return_buffer(self, buffer: memoryview) -> None:
        pool = self._pool(len(buffer))
        if pool is not None and len(pool) < POOLED_MAX:
            pool.append(buffer)

    def _pool(self, size: int) -> list[memoryview] | None:
        return self._idle_pool if size == IDLE_BYTES else self._busy_pool if size == BUSY_BYTES else None


_NOTHING: Final = memoryview(b"")


class ReceiveBuffer:
    """Received bytes `view[start:end]`, followed by free room.

    An idle connection holds no buffer. The first bytes allocate a small one; a read that fills it marks the connection
    as busy and switches to a large one, until many reads in a row would have fitted the small one. Room for a larger
    frame grows with the bytes received, never with the announced length.
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
        """Return the writable view for the next read; never empty."""
        if self._was_filled:
            self._was_filled = False
            if self._capacity < BUSY_BYTES:
                self._become_busy()
        if not self._capacity:
            self.view = self._budget.borrow_idle()
            self._capacity = IDLE_BYTES
            return self.view
        if self.end == self._capacity:
            self._compact()
        return self.view[self.end :]

    def on_received(self, count: int) -> None:
        self.end += count
        if self.end == self._capacity:
            self._was_filled = True
            self._quiet_reads = 0
        elif count <= IDLE_BYTES:
            self._quiet_reads += 1
        else:
            self._quiet_reads = 0

    def expect(self, frame_bytes: int, on_free: Callable[[], None]) -> bool:
        """Make room for the rest of a partial frame; False if the budget is exhausted."""
        capacity = self._capacity
        if frame_bytes <= capacity:
            if self.start + frame_bytes > capacity:
                self._compact()
            return True
        if self.end - self.start < capacity:
            return True  # read into the room there is; grow once it is full
        wanted = min(frame_bytes, max(2 * capacity, BUSY_BYTES))
        if not self._budget.reserve(self, wanted - capacity, on_free):
            return False
        self._extra_bytes += wanted - capacity
        self._move_to(self._budget.borrow(wanted))
        return True

    def missing(self, frame_bytes: int) -> int:
        """Return how many bytes of a partial frame are missing, limited to the room there is."""
        return min(frame_bytes - (self.end - self.start), self._capacity - self.end)

    def recycle(self) -> None:
        """After all frames were delivered: rewind, and shrink if the connection has been quiet."""
        if self.start != self.end:
            return
        self.start = self.end = 0
        capacity = self._capacity
        if capacity == IDLE_BYTES and not self._was_filled:
            self._budget.return_idle(self.view)
            self.view = _NOTHING
            self._capacity = 0
            return
        if capacity == BUSY_BYTES and self._quiet_reads <= self.QUIET_READS_MAX:
            return
        if not self._was_filled or capacity > BUSY_BYTES:
            self._free()

    def release(self) -> None:
        """Return everything to the budget when the connection is closed."""
        self._budget.forget(self)
        self._free()

    def _free(self) -> None:
        self._budget.return_buffer(self.view)
        self._use(_NOTHING)
        self._quiet_reads = 0
        if self._extra_bytes:
            extra_bytes, self._extra_bytes = self._extra_bytes, 0
            self._budget.refund(self, extra_bytes)

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
        self._use(larger)
        self.end = end - start
        larger[: self.end] = old[start:end]
        self._budget.return_buffer(old)

    def _use(self, buffer: memoryview) -> None:
        self.view = buffer
        self._capacity = len(buffer)
        self.start = self.end = 0
