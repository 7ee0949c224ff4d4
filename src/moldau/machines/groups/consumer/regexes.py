"""Subscriptions by regular expression: the matched topics, and when to match again.

The machine does not evaluate expressions itself: patterns come from clients, so the injected matcher must run in linear
time (RE2).
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from moldau.machines.groups.consumer.group import ConsumerGroup, Resolved
from moldau.machines.groups.consumer.member import Member
from moldau.machines.groups.consumer.records import regex_record, regex_tombstone
from moldau.machines.groups.consumer.settings import REGEX_REFRESH_MIN_MS
from moldau.machines.groups.consumer.soft_state import SoftState
from moldau.machines.groups.draft import Draft
from moldau.machines.metadata.image import MetadataImage
from moldau.model.errors import InvalidRegularExpression
from moldau.model.settings import shorten


class RegexMatcher(Protocol):
    """Evaluates patterns in RE2 syntax. Pure functions of their arguments; a module with both suffices."""

    def check_pattern(self, pattern: str) -> None:
        """Raise `ValueError` with the reason if the pattern is invalid."""
        ...

    def matching(self, pattern: str, names: Iterable[str]) -> Sequence[str]:
        """Return the names that the pattern matches completely; `ValueError` if it is invalid."""
        ...


class NoRegexes:
    """Rejects every pattern: for shards without a matcher."""

    def check_pattern(self, pattern: str) -> None:  # noqa: ARG002
        raise ValueError("regular expressions are not supported here")

    def matching(self, pattern: str, names: Iterable[str]) -> Sequence[str]:  # noqa: ARG002
        return ()


class TopicMatcher(NamedTuple):
    """Matches patterns against the topics that a client may describe."""

    matcher: RegexMatcher
    image: MetadataImage
    can_describe: Callable[[str], bool]  # whether the client may describe a topic

    def topics(self, pattern: str, names: Iterable[str]) -> frozenset[str]:
        return frozenset(name for name in self.matcher.matching(pattern, names) if self.can_describe(name))


class Regexes:
    """The regular expressions of a group within a decision about a member."""

    def __init__(self, group: ConsumerGroup, soft: SoftState, draft: Draft, matching: TopicMatcher) -> None:
        self._group = group
        self._soft = soft
        self._draft = draft
        self._matching = matching
        self.resolved: dict[str, Resolved] = dict(group.resolved)
        self.is_changed = False  # whether the subscribed topics changed

    def update(self, before: Member, after: Member) -> None:
        """Apply the member's new expression, and match all again if due."""
        if before.regex != after.regex:
            self._unsubscribe(before.regex)
            if after.regex:
                self._subscribe(after.regex)
            self.is_changed = True
        if self.resolved and self._is_due():
            self._refresh()

    def _unsubscribe(self, regex: str) -> None:
        if regex and self._group.regex_counts[regex] <= 1 and self.resolved.pop(regex, None) is not None:
            self._draft.records.append(regex_tombstone(self._group.group_id, regex))

    def _subscribe(self, regex: str) -> None:
        if regex in self.resolved:
            return
        if not self.resolved:
            self._soft.matched, self._soft.matched_ms = self._matching.image.topics, self._draft.now.ms
        self._resolve(regex, self._matching.topics(regex, self._matching.image.topics))

    def _is_due(self) -> bool:
        """Match again after topics were created, and periodically because ACLs may change."""
        last_ms, topics = self._soft.matched_ms, self._matching.image.topics
        is_early = last_ms is not None and self._draft.now.ms - last_ms < REGEX_REFRESH_MIN_MS
        return self._needs_full_refresh() or (not is_early and self._soft.matched is not topics)

    def _needs_full_refresh(self) -> bool:
        last_ms, interval_ms = self._soft.matched_ms, self._draft.settings.group_consumer_regex_refresh_interval_ms
        return last_ms is None or self._draft.now.ms - last_ms >= interval_ms

    def _refresh(self) -> None:
        """Usually match only new topics; there may be many others."""
        topics, soft = self._matching.image.topics, self._soft
        checked = {} if self._needs_full_refresh() or soft.matched is None else soft.matched
        names = [name for name in topics if name not in checked]
        for regex, old in list(self.resolved.items()):
            new = self._rematch(regex, old, checked, names)
            if new != old.topics:
                self._resolve(regex, new)
        soft.matched, soft.matched_ms = topics, self._draft.now.ms

    def _rematch(self, regex: str, old: Resolved, checked: Container[str], names: Iterable[str]) -> frozenset[str]:
        """A pattern that this broker cannot parse keeps the existing topics it matched before."""
        still = frozenset(name for name in old.topics if name in self._matching.image.topics)
        try:
            return frozenset(name for name in still if name in checked) | self._matching.topics(regex, names)
        except ValueError:
            return still

    def _resolve(self, regex: str, topics: frozenset[str]) -> None:
        version, wall_ms = self._matching.image.offset, self._draft.now.wall_ms
        self.resolved[regex] = Resolved(topics, version, wall_ms)
        self._draft.records.append(regex_record(self._group.group_id, regex, topics, version, wall_ms))
        self.is_changed = True


def check_regex(matcher: RegexMatcher, regex: str) -> None:
    try:
        matcher.check_pattern(regex)
    except ValueError as reason:
        raise InvalidRegularExpression(
            f"SubscribedTopicRegex `{shorten(regex)}` is not a valid regular expression: {reason}."
        ) from None


def regexes_without(group: ConsumerGroup, removed: Iterable[Member]) -> Mapping[str, Resolved]:
    """Return the expressions still in use after these members are removed."""
    counts = group.regex_counts.copy()
    counts.subtract(member.regex for member in removed if member.regex)
    return {regex: each for regex, each in group.resolved.items() if counts[regex] > 0}
