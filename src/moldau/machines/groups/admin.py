"""What admins see of groups."""

from collections.abc import Iterable, Sequence
from typing import Final

from moldau.machines.groups.classic.group import ClassicGroup, Member, Phase
from moldau.machines.groups.group import Group
from moldau.model.errors import GroupIdNotFound
from moldau.wire import messages

Listed = messages.ListGroupsResponse.ListedGroup
Described = messages.DescribeGroupsResponse.DescribedGroup
DescribedMember = messages.DescribeGroupsResponse.DescribedGroupMember

KNOWS_MISSING_GROUPS_FROM: Final = 6  # the version of DescribeGroups


def listed(groups: Iterable[Group], states: Sequence[str], types: Sequence[str]) -> list[Listed]:
    """The groups in one of these states and of one of these types; without any, all."""
    wanted_states, wanted_types = {each.lower() for each in states}, {each.lower() for each in types}
    return [
        Listed(
            group_id=group.group_id,
            protocol_type=group.protocol_type,
            group_state=group.state,
            group_type=group.group_type.value,
        )
        for group in groups
        if (not wanted_states or group.state.lower() in wanted_states)
        and (not wanted_types or group.group_type.value in wanted_types)
    ]


def described(group_id: str, group: ClassicGroup | None, api_version: int, *, is_other: bool = False) -> Described:
    """A classic group. Old clients take one that is not there, or is of another type, for dead; newer are told so."""
    if group is None:
        if api_version < KNOWS_MISSING_GROUPS_FROM:
            return Described(group_id=group_id, group_state=Phase.DEAD.value)
        refusal = GroupIdNotFound(
            f"Group {group_id} is not a classic group." if is_other else f"Group {group_id} not found."
        )
        return Described(
            group_id=group_id,
            group_state=Phase.DEAD.value,
            error_code=refusal.code,
            error_message=refusal.message,
        )
    is_stable = group.phase is Phase.STABLE
    return Described(
        group_id=group_id,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol or "" if is_stable else "",
        members=[_described_member(each, group.protocol if is_stable else None) for each in group.members.values()],
    )


def _described_member(member: Member, protocol: str | None) -> DescribedMember:
    """Only in a stable group is it settled what a member reads and has been assigned."""
    return DescribedMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata(protocol),
        member_assignment=member.assignment if protocol is not None else b"",
    )
