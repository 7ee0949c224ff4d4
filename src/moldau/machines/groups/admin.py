"""Groups as returned to admin clients."""

from collections.abc import Iterable, Sequence
from typing import Final

from moldau.machines.groups.classic.group import ClassicGroup, Member, Phase
from moldau.machines.groups.group import Group
from moldau.model.errors import GroupIdNotFound
from moldau.wire import messages

Listed = messages.ListGroupsResponse.ListedGroup
Described = messages.DescribeGroupsResponse.DescribedGroup
DescribedMember = messages.DescribeGroupsResponse.DescribedGroupMember

GROUP_ID_NOT_FOUND_VERSION: Final = 6  # version of DescribeGroups


def list_groups(groups: Iterable[Group], states: Sequence[str], types: Sequence[str]) -> list[Listed]:
    """List the groups in any of these states and of any of these types; an empty filter matches all."""
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


def describe_group(
    group_id: str, group: ClassicGroup | None, api_version: int, *, is_other_type: bool = False
) -> Described:
    """Describe a classic group. For a missing group or another type old clients get state Dead, newer ones an error."""
    if group is None:
        if api_version < GROUP_ID_NOT_FOUND_VERSION:
            return Described(group_id=group_id, group_state=Phase.DEAD.value)
        error = GroupIdNotFound(
            f"Group {group_id} is not a classic group." if is_other_type else f"Group {group_id} not found."
        )
        return Described(
            group_id=group_id,
            group_state=Phase.DEAD.value,
            error_code=error.code,
            error_message=error.message,
        )
    is_stable = group.phase is Phase.STABLE
    return Described(
        group_id=group_id,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol or "" if is_stable else "",
        members=[_describe_member(each, group.protocol if is_stable else None) for each in group.members.values()],
    )


def _describe_member(member: Member, protocol: str | None) -> DescribedMember:
    """Only a stable group has settled subscriptions and assignments."""
    return DescribedMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata(protocol),
        member_assignment=member.assignment if protocol is not None else b"",
    )
