"""A shard with share groups; the share coordinator's part is played by the test."""

from collections.abc import Callable, Sequence
from typing import Any

from consumer_scene import ConsumerScene

from moldau.machines.decision import Decision, Ticket
from moldau.machines.groups import Caller, Record
from moldau.machines.groups.deleted_topics import DeletedTopic
from moldau.machines.groups.share.effects import InitializeStates
from moldau.machines.groups.share.group import ShareGroup
from moldau.model.ids import TopicId
from moldau.wire import messages

HEARTBEAT = messages.ShareGroupHeartbeatRequest
CALLER = Caller("client", "/10.0.0.1", 1)


class ShareScene(ConsumerScene):
    """Collects the requests to the share coordinator in `effects`."""

    effects: list[InitializeStates]

    def elect(self) -> None:
        self.effects = []
        super().elect()

    def run(self, decide: Callable[[], Decision[Record, Any]], ticket: Ticket | None = None) -> Any:
        decision: Decision[Record, Any]

        def capture() -> Decision[Record, Any]:
            nonlocal decision
            decision = decide()
            return decision

        response = super().run(capture, ticket)
        for effect in decision.effects:
            assert isinstance(effect, InitializeStates)
            self.effects.append(effect)
        return response

    def share_group(self, group_id: str = "g") -> ShareGroup:
        return self.machine.state.share[group_id]

    def share(
        self,
        member_id: str,
        epoch: int,
        topics: Sequence[str] | None = None,
        *,
        group_id: str = "g",
        rack_id: str | None = None,
        caller: Caller = CALLER,
    ) -> messages.ShareGroupHeartbeatResponse:
        """Send one heartbeat; raise its error."""
        request = HEARTBEAT(
            group_id=group_id,
            member_id=member_id,
            member_epoch=epoch,
            rack_id=rack_id,
            subscribed_topic_names=None if topics is None else list(topics),
        )
        response = self.run(lambda: self.machine.decide_share_heartbeat(request, caller, now=self.now))
        assert isinstance(response, messages.ShareGroupHeartbeatResponse)
        return response

    def confirm_states(self) -> None:
        """Let the share coordinator confirm everything that it was asked to initialize."""
        effects, self.effects = self.effects, []
        for effect in effects:
            self.run(
                lambda effect=effect: self.machine.decide_states_initialized(  # type: ignore[misc]
                    effect.group_id, effect.partitions, now=self.now
                )
            )

    def forget_topic(self, topic_id: TopicId, name: str) -> None:
        """Notify the shard of a deleted topic."""
        deleted = DeletedTopic(topic_id, name, self.wall_ms)
        assert self.run(lambda: self.machine.decide_topics_deleted([deleted], now=self.now))

    def settle_shared(self, *member_ids: str, topics: Sequence[str] = ("a",), group_id: str = "g") -> None:
        """Join or continue these members until their assignments are stable."""
        for _ in range(4):
            for member_id in member_ids:
                group = self.machine.state.share.get(group_id)
                member = None if group is None else group.members.get(member_id)
                if member is None:
                    self.share(member_id, 0, topics, group_id=group_id)
                else:
                    self.share(member_id, member.epoch, group_id=group_id)
            self.confirm_states()

    def assigned(self, member_id: str, topic: str = "a", group_id: str = "g") -> list[int]:
        """Return the assigned partitions of a topic."""
        assigned = self.share_group(group_id).members[member_id].assigned
        return sorted(assigned.get(self.id_of(topic), ()))
