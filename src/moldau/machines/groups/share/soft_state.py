"""Soft state of a share group: session deadlines, and which metadata has been processed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from moldau.machines.groups.draft import Draft
from moldau.machines.groups.share.settings import ShareGroupConfig, ShareGroupSettings, share_group_config
from moldau.machines.metadata.image import NOTHING_SET, MetadataImage, Resource, ResourceType, TopicImage
from moldau.model.units import SECOND_MS

STALL_MS: Final = 1 * SECOND_MS  # timer delay explained by a busy event loop; a longer one is a stall
STALL_GRACE_MS: Final = 5 * SECOND_MS  # for members to resend lost heartbeats, and to process them


@dataclass(frozen=True, slots=True)
class ShareMembersDue:
    """The session of a member of a share group may have timed out."""

    group_id: str


@dataclass(slots=True, eq=False)
class ShareSoftState:
    """Soft state of a group; rebuilt after a change of leadership. One timer covers all sessions."""

    group_id: str
    sessions: dict[str, float] = field(default_factory=dict)  # deadline by member id
    timer_ms: float | None = None
    topics: Mapping[str, TopicImage] | None = None  # topics last compared with the group's epoch
    changed_ms: float | None = None  # when the group epoch was last bumped
    initialized_ms: float | None = None  # when the initialization of share partitions was last requested
    _config: ShareGroupConfig | None = None
    _inputs: tuple[object, object] = (None, None)

    def config(self, settings: ShareGroupSettings, image: MetadataImage) -> ShareGroupConfig:
        """Return the group's configs, derived again after a change only."""
        inputs = settings, image.configs
        if self._config is None or self._inputs[0] is not inputs[0] or self._inputs[1] is not inputs[1]:
            own = image.configs.get(Resource(ResourceType.GROUP, self.group_id), NOTHING_SET)
            self._config, self._inputs = share_group_config(settings, own), inputs
        return self._config

    def is_initialization_due(self, now_ms: float, settings: ShareGroupSettings) -> bool:
        """Whether an earlier request is lost or so old that it must be repeated."""
        requested_ms = self.initialized_ms
        return requested_ms is None or now_ms - requested_ms >= settings.group_share_initialize_retry_interval_ms

    def extend_session(self, draft: Draft, member_id: str, timeout_ms: int) -> None:
        self.sessions[member_id] = deadline_ms = draft.now.ms + timeout_ms
        self._arm(draft, deadline_ms)

    def _arm(self, draft: Draft, deadline_ms: float) -> None:
        if self.timer_ms is None or deadline_ms < self.timer_ms:
            self.timer_ms = deadline_ms
            draft.set_timer(ShareMembersDue(self.group_id), deadline_ms - draft.now.ms)

    def arm_next(self, draft: Draft) -> None:
        """Set the timer to the next deadline after it has expired."""
        self.timer_ms = None
        if self.sessions:
            self._arm(draft, min(self.sessions.values()))

    def expired_members(self, members: Mapping[str, object], now_ms: float) -> Sequence[str]:
        """Return members with an expired session. After a stall of this node they get the lost time back."""
        stall_ms = 0.0 if self.timer_ms is None else now_ms - self.timer_ms
        more_ms = stall_ms + STALL_GRACE_MS if stall_ms > STALL_MS else 0.0
        self.sessions = {each: deadline + more_ms for each, deadline in self.sessions.items() if each in members}
        return [member_id for member_id, deadline_ms in self.sessions.items() if deadline_ms <= now_ms]
