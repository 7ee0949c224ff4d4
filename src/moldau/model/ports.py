"""Ports: every dependency of a node on the outside world. `node/ports` has real ones, `testing` simulated ones.

Timers and tasks are asyncio's: a simulation runs the same code on an event loop with virtual time.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeVar

from moldau.model.ids import Address
from moldau.model.tls import TlsSettings

Buffer = bytes | bytearray | memoryview
Job = TypeVar("Job")
Result = TypeVar("Result")

SYSTEM_BUFFER: Final = -1  # the kernel chooses the size of a socket buffer, and adjusts it


class Clock(Protocol):
    """Wall time for records; monotonic time for durations and leases."""

    def wall_ms(self) -> int: ...

    def monotonic_ms(self) -> float: ...


class Random(Protocol):
    """The only source of randomness; `random.Random` implements it."""

    def random(self) -> float: ...

    def randrange(self, start: int, stop: int) -> int: ...

    def randbytes(self, n: int, /) -> bytes: ...


class File(Protocol):
    """An open file. Every call takes a position; there is no cursor."""

    def pread(self, length: int, position: int) -> bytes:
        """Return `length` bytes; fewer only at the end of the file."""
        ...

    def pwrite(self, data: Buffer, position: int) -> int:
        """Write, and return how many bytes were written, which may be fewer than given."""
        ...

    def pwritev(self, parts: Sequence[Buffer], position: int) -> int:
        """Like `pwrite`, for several consecutive buffers."""
        ...

    def is_cached(self, length: int, position: int) -> bool:
        """Return whether this range is in the page cache (True where the system cannot tell)."""
        ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def allocate(self, size: int) -> None:
        """Reserve blocks for the file to grow to `size`; its length does not change."""
        ...

    def fsync(self) -> None: ...

    def fileno(self) -> int:
        """Return the descriptor for `sendfile`, or -1 if there is none."""
        ...

    def close(self) -> None: ...


class DirectoryLock(Protocol):
    """Held while a node owns a data directory."""

    def release(self) -> None: ...


class Disk(Protocol):
    """The file system. Paths are plain strings with `/`; failures are `OSError`."""

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File: ...

    def map(self, path: str) -> memoryview:
        """Map a whole immutable file, read-only. Call `release()` on the view when done."""
        ...

    def read(self, path: str) -> bytes: ...

    def read_uncached(self, path: str, length: int, position: int) -> bytes:
        """Read from the medium where the system can, and leave the page cache as it is; fewer bytes only at the end."""
        ...

    def list(self, directory: str) -> list[str]:
        """Return the sorted names in a directory."""
        ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def make_directory(self, directory: str) -> None:
        """Create a directory and its parents; no error if it exists."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename atomically, replacing `new` if it exists."""
        ...

    def unlink(self, path: str) -> None: ...

    def remove_directory(self, directory: str) -> None:
        """Remove a directory and its contents."""
        ...

    def sync_directory(self, directory: str) -> None:
        """Make creations, renames and removals in the directory survive a power loss."""
        ...

    def free_bytes(self, directory: str) -> int: ...

    def total_bytes(self, directory: str) -> int: ...

    def files_max(self) -> int:
        """Return the limit of open descriptors of this process, connections included."""
        ...

    def boot_id(self) -> str:
        """Return an id of this boot of the machine, which changes with every power loss; empty where unknown."""
        ...

    def lock(self, path: str) -> DirectoryLock:
        """Lock the file at `path`; `BlockingIOError` if another node holds the lock."""
        ...


class Executor(Protocol):
    """Runs work outside the event loop. Both queues are bounded."""

    def run(self, work: Callable[..., Result], *arguments: object) -> Awaitable[Result]:
        """Run in a thread; only for calls that release the GIL (fsync, cold reads, unlink, C codecs)."""
        ...

    def work_on_files(
        self, work: Callable[[Disk, Job], Result], job: Job, *, is_urgent: bool = False
    ) -> Awaitable[Result]:
        """Run in a worker process; for Python loops over files. `work` is a module-level function, `job` pickles.

        Urgent jobs, which block requests of clients, do not queue behind other jobs. `OSError` if the worker dies.
        """
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class FileSlice:
    """Bytes of a file that the network sends without loading them first."""

    file: File
    position: int
    length: int

    def __len__(self) -> int:
        return self.length

    def read(self) -> bytes:
        return self.file.pread(self.length, self.position)


Piece = Buffer | FileSlice


class Connection(Protocol):
    """A stream of frames, from its owner's side."""

    local: Address
    peer: Address
    peer_subject: str | None  # the distinguished name (RFC 2253) of the peer's verified certificate
    frame_bytes_max: int
    may_defer_reads: (
        bool  # set by the owner: frames may be read some milliseconds late, in a batch with other connections
    )
    has_more_bytes: bool  # during `frame_received`: whether more received bytes follow this frame
    on_turn_end: Callable[[], None]  # called after the frames of a turn, before their responses are sent

    @property
    def queued_bytes(self) -> int:
        """Bytes given to `send` and not sent yet."""
        ...

    @property
    def queued_memory_bytes(self) -> int:
        """The part of `queued_bytes` that is held in memory: without file slices."""
        ...

    @property
    def is_in_frame(self) -> bool:
        """Whether a frame was received in part."""
        ...

    def send(self, pieces: Sequence[Piece]) -> None:
        """Queue whole frames, length prefixes included. Never blocks; ignores a lost connection."""
        ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        """Send the queued bytes, then close."""
        ...

    def abort(self) -> None:
        """Close now and drop the queued bytes."""
        ...


class Endpoint(Protocol):
    """Callbacks of a connection, on the event loop; they must not raise."""

    def connected(self, connection: Connection) -> None: ...

    def frame_received(self, frame: memoryview) -> None:
        """Handle one frame without its length prefix. The view is valid until the turn ends (`on_turn_end`)."""
        ...

    def drained(self) -> None:
        """The output queue became empty."""
        ...

    def disconnected(self, reason: str) -> None:
        """Called once, whichever side closed; `reason` is empty for an ordinary close."""
        ...


class Listener(Protocol):
    """An open port."""

    address: Address

    async def close(self) -> None:
        """Stop accepting; established connections stay open."""
        ...


Page = tuple[int, str, bytes]  # status, content type, body


class PageRequest(NamedTuple):
    """An HTTP GET request."""

    path: str
    authorization: str = ""  # the header's value
    peer: str = ""


PageHandler = Callable[[PageRequest], Awaitable[Page]]


class Network(Protocol):
    """Receives frames; sends buffers and file slices."""

    async def listen(
        self,
        address: Address,
        accept: Callable[[], Endpoint],
        frame_bytes_max: int,
        tls: Callable[[], TlsSettings] | None = None,
    ) -> Listener:
        """Listen on an address; port 0 picks a free one, which the listener has as its address.

        `tls` returns the settings in effect, for each new connection; None: without TLS. An endpoint is `connected`
        once the handshake is complete. `InvalidConfig` if the certificates cannot be used.
        """
        ...

    async def connect(
        self, address: Address, endpoint: Endpoint, frame_bytes_max: int, tls: TlsSettings | None = None
    ) -> Connection:
        """Connect, with TLS if `tls` is given; `OSError` if the connection or the handshake fails."""
        ...

    async def serve_pages(
        self, address: Address, page: PageHandler, tls: Callable[[], TlsSettings] | None = None
    ) -> Listener:
        """Serve HTTP GET, for metrics: `page` maps a request to a page. `tls` as for `listen`."""
        ...


@dataclass(frozen=True, slots=True)
class Ports:
    """All ports of a node."""

    clock: Clock
    random: Random
    executor: Executor
    disk: Disk
    network: Network
