"""Consumer groups and their offsets: one shard of them as a replicated machine."""

from moldau.machines.groups.draft import Asker, Now
from moldau.machines.groups.group import Group, GroupType
from moldau.machines.groups.machine import GroupsMachine
from moldau.machines.groups.records import Record, record_version
from moldau.machines.groups.settings import GroupSettings
from moldau.machines.groups.state import GroupsState

__all__ = [
    "Asker",
    "Group",
    "GroupSettings",
    "GroupType",
    "GroupsMachine",
    "GroupsState",
    "Now",
    "Record",
    "record_version",
]
