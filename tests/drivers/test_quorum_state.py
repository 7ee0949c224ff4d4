"""The persisted vote of a node."""

import pytest

from moldau.broker.drivers.quorum_state import FILE_NAME, QuorumState, read_quorum_state, write_quorum_state
from moldau.storage.files import replace_cache
from moldau_dev.simulation.simulation import Simulation

FOLDER = "/data"


@pytest.mark.proves("H6", part="votes and commits")
def test_unsynced_vote_is_durable_once_it_is_read() -> None:
    disk = Simulation(seed=1).host("node").disk
    disk.prepare_folder(FOLDER)
    mounted = disk.mount()
    write_quorum_state(mounted, FOLDER, QuorumState(5, 3, 3))
    voted = QuorumState(6, -1, 1)
    replace_cache(mounted, f"{FOLDER}/{FILE_NAME}", voted.encode(None))
    mounted.open(f"{FOLDER}/{FILE_NAME}").fsync()  # its bytes, but not its name
    disk.crash()
    assert read_quorum_state(disk.mount(), FOLDER) == voted
    disk.power_loss()
    assert read_quorum_state(disk.mount(), FOLDER) == voted
