"""The simulated disk fails like real ones."""

import errno

import pytest

from moldau.model.ports import Disk
from moldau.testing.disk import Crashed, IoPoint, SimulatedDisk, When


def write(disk: Disk, path: str, content: bytes, *, synced: bool = False) -> None:
    file = disk.open(path, create=True)
    file.pwrite(content, file.size())
    if synced:
        file.fsync()
    file.close()


def prepared(seed: int = 0) -> SimulatedDisk:
    disk = SimulatedDisk(seed)
    disk.prepare_folder("/data")
    return disk


def test_file_returns_what_was_written() -> None:
    disk: Disk = prepared().mount()
    file = disk.open("/data/a", create=True)
    assert file.pwrite(b"hello", 0) == 5
    assert file.pwrite(memoryview(b"there"), 8) == 5
    assert file.pread(100, 0) == b"hello\0\0\0there"
    assert file.pread(2, 1) == b"el"
    file.truncate(3)
    assert (file.size(), disk.size("/data/a"), disk.read("/data/a")) == (3, 3, b"hel")
    with disk.map("/data/a") as view:
        assert bytes(view) == b"hel"
    assert disk.list("/data") == ["a"]
    assert file.fileno() == -1


def test_missing_paths_raise_the_errors_of_the_kernel() -> None:
    disk = prepared().mount()
    for call in (
        lambda: disk.open("/data/no"),
        lambda: disk.open("/no/file", create=True),
        lambda: disk.read("/data/no"),
        lambda: disk.list("/no"),
        lambda: disk.unlink("/data/no"),
        lambda: disk.rename("/data/no", "/data/yes"),
        lambda: disk.remove_directory("/no"),
    ):
        with pytest.raises(FileNotFoundError):
            call()
    with pytest.raises(IsADirectoryError):
        disk.open("/data")
    write(disk, "/data/file", b"")
    with pytest.raises(NotADirectoryError):
        disk.make_directory("/data/file/below")
    with pytest.raises(OSError, match="Bad file descriptor"):
        disk.open("/data/file", read_only=True).pwrite(b"x", 0)


def test_rename_replaces_files_atomically_and_moves_folders() -> None:
    disk = prepared().mount()
    write(disk, "/data/new", b"new")
    write(disk, "/data/old", b"old")
    disk.rename("/data/new", "/data/old")
    assert (disk.list("/data"), disk.read("/data/old")) == (["old"], b"new")
    disk.make_directory("/data/t-0")
    write(disk, "/data/t-0/x", b"x")
    disk.rename("/data/t-0", "/data/t-0-delete")
    assert disk.read("/data/t-0-delete/x") == b"x"
    disk.remove_directory("/data/t-0-delete")
    assert disk.list("/data") == ["old"]


def test_process_crash_keeps_writes_and_invalidates_handles() -> None:
    disk = prepared()
    mounted = disk.mount()
    file = mounted.open("/data/a", create=True)
    file.pwrite(b"kept", 0)
    disk.crash()
    for call in (file.fsync, file.size, lambda: file.pwrite(b"x", 0), lambda: mounted.read("/data/a")):
        with pytest.raises(Crashed):
            call()
    file.close()
    assert disk.mount().read("/data/a") == b"kept"


def test_power_loss_keeps_synced_data_and_a_prefix_of_the_rest() -> None:
    survivors = set()
    for seed in range(200):
        disk = prepared(seed)
        mounted = disk.mount()
        write(mounted, "/data/a", b"AAAA", synced=True)
        mounted.sync_directory("/data")
        for letter in (b"bbbb", b"cccc", b"dddd"):
            write(mounted, "/data/a", letter)
        disk.power_loss()
        content = disk.mount().read("/data/a")
        assert content.startswith(b"AAAA")
        assert b"AAAAbbbbccccdddd".startswith(content.rstrip(b"\0"))
        survivors.add(content)
    assert b"AAAA" in survivors
    assert b"AAAAbbbbccccdddd" in survivors
    assert any(len(content) % 4 for content in survivors), "no write was ever torn"
    assert any(content.endswith(b"\0") for content in survivors), "no length ever outlived its bytes"


def test_power_loss_may_keep_scattered_unsynced_writes() -> None:
    survivors = set()
    for seed in range(100):
        disk = prepared(seed)
        disk.faults.scatters = True
        mounted = disk.mount()
        write(mounted, "/data/a", b"A", synced=True)
        mounted.sync_directory("/data")
        for letter in (b"b", b"c"):
            write(mounted, "/data/a", letter)
        disk.power_loss()
        survivors.add(disk.mount().read("/data/a"))
    assert survivors == {b"A", b"Ab", b"A\0c", b"Abc"}


def test_synced_file_may_vanish_when_its_folder_was_not_synced() -> None:
    there = set()
    for seed in range(50):
        disk = prepared(seed)
        write(disk.mount(), "/data/a", b"A", synced=True)
        disk.power_loss()
        there.add(disk.mount().exists("/data/a"))
    assert there == {True, False}


def test_synced_folder_keeps_names_but_not_unsynced_content() -> None:
    contents = set()
    for seed in range(50):
        disk = prepared(seed)
        mounted = disk.mount()
        write(mounted, "/data/a.tmp", b"A")
        mounted.rename("/data/a.tmp", "/data/a")
        mounted.sync_directory("/data")
        disk.power_loss()
        assert disk.mount().list("/data") == ["a"]
        contents.add(disk.mount().read("/data/a"))
    assert contents >= {b"", b"A"}


def test_unsynced_rename_leaves_the_old_or_the_new_file() -> None:
    outcomes = set()
    for seed in range(50):
        disk = prepared(seed)
        mounted = disk.mount()
        write(mounted, "/data/a", b"old", synced=True)
        write(mounted, "/data/a.tmp", b"new", synced=True)
        mounted.sync_directory("/data")
        mounted.rename("/data/a.tmp", "/data/a")
        disk.power_loss()
        after = disk.mount()
        outcomes.add((tuple(after.list("/data")), after.read("/data/a")))
    assert outcomes == {(("a", "a.tmp"), b"old"), (("a",), b"new")}


def test_unsynced_move_between_folders_is_atomic() -> None:
    outcomes = set()
    for seed in range(50):
        disk = prepared(seed)
        disk.prepare_folder("/data/from")
        disk.prepare_folder("/data/to")
        mounted = disk.mount()
        write(mounted, "/data/from/a", b"A", synced=True)
        mounted.sync_directory("/data/from")
        mounted.rename("/data/from/a", "/data/to/a")
        disk.power_loss()
        after = disk.mount()
        outcomes.add((tuple(after.list("/data/from")), tuple(after.list("/data/to"))))
    assert outcomes == {(("a",), ()), ((), ("a",))}


def test_unsynced_removal_may_be_undone() -> None:
    there = set()
    for seed in range(50):
        disk = prepared(seed)
        mounted = disk.mount()
        write(mounted, "/data/a", b"A", synced=True)
        mounted.sync_directory("/data")
        mounted.unlink("/data/a")
        disk.power_loss()
        there.add(disk.mount().exists("/data/a"))
    assert there == {True, False}


@pytest.mark.parametrize(
    ("when", "expected"),
    [(When.BEFORE, {b""}), (When.AFTER, {b"0123456789"}), (When.TORN, {b"01234", b"", b"0123456"})],
)
def test_planned_crash_happens_before_within_or_after_the_write(when: When, expected: set[bytes]) -> None:
    found = set()
    for seed in range(60):
        disk = prepared(seed)
        mounted = disk.mount()
        file = mounted.open("/data/a", create=True)
        disk.crash_at(disk.points + 1, when)
        with pytest.raises(Crashed):
            file.pwrite(b"0123456789", 0)
        with pytest.raises(Crashed):
            mounted.list("/data")
        found.add(disk.mount().read("/data/a"))
    assert found >= expected
    assert when is When.TORN or found == expected


def test_every_change_is_a_numbered_io_point() -> None:
    disk = prepared()
    seen: list[IoPoint] = []
    disk.on_io = seen.append
    first = disk.points
    mounted = disk.mount()
    write(mounted, "/data/a", b"A", synced=True)
    mounted.rename("/data/a", "/data/b")
    mounted.sync_directory("/data")
    mounted.unlink("/data/b")
    assert [point.operation for point in seen] == ["create", "pwrite", "fsync", "rename", "sync_directory", "unlink"]
    assert [point.number for point in seen] == list(range(first + 1, first + 7))


def test_planned_failure_affects_only_the_given_call_and_file() -> None:
    disk = prepared()
    mounted = disk.mount()
    file = mounted.open("/data/a.log", create=True)
    disk.fail("pwrite", errno.EIO, path=".index")
    disk.fail("pwrite", errno.EIO, path=".log", skip=1)
    file.pwrite(b"x", 0)
    with pytest.raises(OSError, match="Input/output error"):
        file.pwrite(b"y", 1)
    file.pwrite(b"z", 1)
    assert file.pread(9, 0) == b"xz"
    assert disk.fired["failed pwrite"] == 1


def test_short_write_returns_the_written_length() -> None:
    disk = prepared()
    file = disk.mount().open("/data/a", create=True)
    disk.shorten_write(3)
    assert file.pwrite(b"0123456789", 0) == 3
    assert file.pread(99, 0) == b"012"
    disk.faults.short_write = 1.0
    assert 1 <= file.pwrite(b"0123456789", 0) < 10


def test_full_disk_writes_what_fits_fails_and_recovers() -> None:
    disk = prepared()
    disk.capacity_bytes = 10
    mounted = disk.mount()
    write(mounted, "/data/old", b"1234")
    file = mounted.open("/data/a", create=True)
    assert file.pwrite(b"0123456789", 0) == 6
    assert mounted.free_bytes("/data") == 0
    with pytest.raises(OSError, match="No space left"):
        file.pwrite(b"x", 6)
    with pytest.raises(OSError, match="No space left"):
        file.allocate(7)
    assert file.pwrite(b"over", 0) == 4, "overwriting needs no room"
    mounted.unlink("/data/old")
    assert mounted.free_bytes("/data") == 4
    assert file.pwrite(b"x", 6) == 1
    assert (disk.used_bytes, mounted.total_bytes("/data")) == (7, 10)


def test_space_of_a_removed_file_is_freed_at_the_last_close() -> None:
    disk = prepared()
    mounted = disk.mount()
    file = mounted.open("/data/a", create=True)
    file.allocate(100)
    mounted.unlink("/data/a")
    assert disk.used_bytes == 100
    file.close()
    assert disk.used_bytes == 0


@pytest.mark.parametrize("scatters", [False, True])
def test_second_fsync_after_a_failed_one_does_not_make_data_durable(scatters: bool) -> None:
    contents = set()
    for seed in range(100):
        disk = prepared(seed)
        disk.faults.scatters = scatters
        mounted = disk.mount()
        file = mounted.open("/data/a", create=True)
        mounted.sync_directory("/data")
        for letter in (b"A", b"B", b"C"):
            file.pwrite(letter, file.size())
        disk.fail("fsync")
        with pytest.raises(OSError, match="Input/output error"):
            file.fsync()
        assert file.pread(3, 0) == b"ABC"
        file.fsync()
        disk.power_loss()
        contents.add(disk.mount().read("/data/a"))
    assert contents >= {b"", b"A", b"AB", b"ABC"}
    assert (b"\0\0C" in contents) == scatters


@pytest.mark.parametrize(("scatters", "expected"), [(False, {b""}), (True, {b"", b"ABC"})])
def test_next_process_may_read_what_a_failed_fsync_lost(scatters: bool, expected: set[bytes]) -> None:
    contents = set()
    for seed in range(100):
        disk = prepared(seed)
        disk.faults.scatters = scatters
        mounted = disk.mount()
        write(mounted, "/data/a", b"ABC")
        disk.fail("fsync")
        with pytest.raises(OSError, match="Input/output error"):
            mounted.open("/data/a").fsync()
        lost = disk.inode("/data/a").durable == b""
        disk.crash()
        if lost:
            contents.add(disk.mount().read("/data/a"))
    assert contents == expected


def test_flipped_bit_is_durable() -> None:
    disk = prepared()
    mounted = disk.mount()
    write(mounted, "/data/a", bytes(4), synced=True)
    mounted.sync_directory("/data")
    disk.flip_bit("/data/a", 2, 0)
    assert mounted.read("/data/a") == b"\0\0\1\0"
    disk.power_loss()
    assert disk.mount().read("/data/a") == b"\0\0\1\0"


def test_lock_excludes_a_second_node_and_is_released_by_a_crash() -> None:
    disk = prepared()
    lock = disk.mount().lock("/data/.lock")
    with pytest.raises(BlockingIOError):
        disk.mount().lock("/data/.lock")
    lock.release()
    old = disk.mount().lock("/data/.lock")
    disk.crash()
    disk.mount().lock("/data/.lock")
    old.release()
    with pytest.raises(BlockingIOError):
        disk.mount().lock("/data/.lock")


def test_one_seed_gives_one_run() -> None:
    def run(seed: int) -> str:
        disk = prepared(seed)
        mounted = disk.mount()
        for number in range(20):
            write(mounted, f"/data/{number % 3}", bytes([number]) * number)
        mounted.sync_directory("/data")
        disk.power_loss()
        return disk.trace.hash()

    assert run(1) == run(1)
    assert run(1) != run(2)
