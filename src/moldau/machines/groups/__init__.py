"""Consumer groups and their committed offsets: a shard of them as a replicated machine."""

from moldau.machines.groups.draft import Caller, Now
from moldau.machines.groups.group import Group, GroupType
from moldau.machines.groups.machine import GroupsMachine
from moldau.machines.groups.records import Record, record_version
from moldau.machines.groups.settings import GroupSettings
from moldau.machines.groups.state import GroupsState

__all__ = [
    "Caller",
    "Group",
    "GroupSettings",
    "GroupType",
    "GroupsMachine",
    "GroupsState",
    "Now",
    "Record",
    "record_version",
]
