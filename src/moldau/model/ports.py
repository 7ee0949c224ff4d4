"""The ports: all that a node asks of the world outside it. Real ones are in `node/ports`, simulated ones in `testing`.

Timers and tasks are asyncio's own: a simulation runs the same code on an event loop whose time is virtual.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from moldau.model.ids import Address

Buffer = bytes | bytearray | memoryview
Job = TypeVar("Job")
Result = TypeVar("Result")


class Clock(Protocol):
    """Two clocks: wall time is for records, monotonic time is for durations and leases."""

    def wall_ms(self) -> int: ...

    def monotonic_ms(self) -> float: ...


class Random(Protocol):
    """The one source of randomness; `random.Random` is one."""

    def random(self) -> float: ...

    def randrange(self, start: int, stop: int) -> int: ...

    def randbytes(self, n: int, /) -> bytes: ...


class File(Protocol):
    """An open file. Positions are given on every call, so a file has no cursor."""

    def pread(self, length: int, position: int) -> bytes:
        """At most `length` bytes; fewer only at the end of the file."""
        ...

    def pwrite(self, data: Buffer, position: int) -> int:
        """Write and say how many bytes were taken, which may be fewer than given."""
        ...

    def pwritev(self, parts: Sequence[Buffer], position: int) -> int:
        """Like `pwrite`, for several buffers that follow each other in the file."""
        ...

    def is_cached(self, length: int, position: int) -> bool:
        """Whether reading this range now would not wait for the disk (True where nobody can tell)."""
        ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def allocate(self, size: int) -> None:
        """Reserve room for the file to grow to `size`; its length does not change."""
        ...

    def fsync(self) -> None: ...

    def fileno(self) -> int:
        """The descriptor for `sendfile`, or -1 where there is none."""
        ...

    def close(self) -> None: ...


class FolderLock(Protocol):
    """Held while a node owns a data folder."""

    def release(self) -> None: ...


class Disk(Protocol):
    """The file system. Paths are plain strings with `/`; failures are `OSError`."""

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File: ...

    def map(self, path: str) -> memoryview:
        """A read-only view of a whole file that no longer changes. `release()` it when done."""
        ...

    def read(self, path: str) -> bytes: ...

    def list(self, folder: str) -> list[str]:
        """The names in a folder, sorted."""
        ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def make_folder(self, folder: str) -> None:
        """With its parents; no error if it is there."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Replaces `new` if it exists, in one step."""
        ...

    def unlink(self, path: str) -> None: ...

    def remove_folder(self, folder: str) -> None:
        """With all that is in it."""
        ...

    def sync_folder(self, folder: str) -> None:
        """Makes creations, renames and removals in it survive a power loss."""
        ...

    def free_bytes(self, folder: str) -> int: ...

    def total_bytes(self, folder: str) -> int: ...

    def files_max(self) -> int:
        """How many may be open at once in this process, its connections included."""
        ...

    def boot_id(self) -> str:
        """Names this run of the machine: another one after every power loss. Empty where nobody can tell."""
        ...

    def lock(self, path: str) -> FolderLock:
        """Take the lock file at `path`; `BlockingIOError` if another node holds it."""
        ...


class Executor(Protocol):
    """Work beside the event loop. Both queues are bounded."""

    def run(self, work: Callable[..., Result], *arguments: object) -> Awaitable[Result]:
        """In a thread: only for calls that release the GIL (fsync, cold reads, unlink, C codecs)."""
        ...

    def work_on_files(
        self, work: Callable[[Disk, Job], Result], job: Job, *, is_urgent: bool = False
    ) -> Awaitable[Result]:
        """In a worker process: for Python loops over files. `work` is a module's function, `job` pickles.

        What is urgent, because somebody cannot be served before it is done, does not wait behind what is not.
        `OSError` if the worker dies of it.
        """
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class FileSlice:
    """Bytes that stay in a file until the network sends them."""

    file: File
    position: int
    length: int

    def __len__(self) -> int:
        return self.length

    def read(self) -> bytes:
        return self.file.pread(self.length, self.position)


Piece = Buffer | FileSlice


class Connection(Protocol):
    """One stream of frames, as its owner sees it."""

    local: Address
    peer: Address
    frame_bytes_max: int
    may_wait: bool  # whether its frames may be read some milliseconds late, together with others'; set by the owner
    is_in_run: bool  # while a frame is handed over: whether more bytes of this turn follow it
    when_turn_ends: Callable[[], None]  # called after the frames of a turn, before the answers to them leave

    @property
    def queued_bytes(self) -> int:
        """What was given to `send` and has not left yet."""
        ...

    @property
    def queued_memory_bytes(self) -> int:
        """The part of it that is held in memory, slices of files aside."""
        ...

    @property
    def is_in_frame(self) -> bool:
        """Whether a frame has begun of which the peer owes the rest."""
        ...

    def send(self, pieces: Sequence[Piece]) -> None:
        """Queue whole frames, length prefixes included. Never waits, never raises for a lost peer."""
        ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        """Send what is queued, then close."""
        ...

    def abort(self) -> None:
        """Close now and drop what is queued."""
        ...


class Endpoint(Protocol):
    """What somebody does with a connection. Called on the event loop; must not raise."""

    def connected(self, connection: Connection) -> None: ...

    def frame_received(self, frame: memoryview) -> None:
        """One frame without its length prefix. The bytes are lent until the turn ends (`when_turn_ends`)."""
        ...

    def drained(self) -> None:
        """The output queue has emptied after it was not."""
        ...

    def disconnected(self, reason: str) -> None:
        """Once, whoever closed; `reason` is empty for an ordinary close."""
        ...


class Listener(Protocol):
    """An open port."""

    address: Address

    async def close(self) -> None:
        """Stop accepting; open connections stay."""
        ...


Page = tuple[int, str, bytes]  # status, content type, body


class Network(Protocol):
    """Frames in, buffers and file slices out."""

    async def listen(self, address: Address, accept: Callable[[], Endpoint], frame_bytes_max: int) -> Listener:
        """Port 0 means any free one; the listener says which."""
        ...

    async def connect(self, address: Address, endpoint: Endpoint, frame_bytes_max: int) -> Connection:
        """`OSError` when nobody answers."""
        ...

    async def serve_pages(self, address: Address, page: Callable[[str], Awaitable[Page]]) -> Listener:
        """Plain HTTP GET, for metrics: the path goes in, a page comes out."""
        ...


@dataclass(frozen=True, slots=True)
class Ports:
    """All of them together, as a node is given them."""

    clock: Clock
    random: Random
    executor: Executor
    disk: Disk
    network: Network
