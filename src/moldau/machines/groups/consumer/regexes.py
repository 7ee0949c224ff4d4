"""Subscriptions by regular expression: which topics each of them matches, and when that is asked anew.

The machine reads no expression itself. It is given a matcher, because the patterns are a client's and must be read by
something whose time does not explode.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from moldau.machines.groups.consumer.group import ConsumerGroup, Resolved
from moldau.machines.groups.consumer.member import Member
from moldau.machines.groups.consumer.records import regex_end_record, regex_record
from moldau.machines.groups.consumer.settings import REGEX_REFRESH_MIN_MS
from moldau.machines.groups.consumer.soft_state import Watch
from moldau.machines.groups.draft import Draft
from moldau.machines.metadata.image import MetadataImage
from moldau.model.errors import InvalidRegularExpression
from moldau.model.settings import shorten


class RegexMatcher(Protocol):
    """Reads patterns in RE2's syntax. Its answers depend on its arguments alone. A module with these two will do."""

    def check_pattern(self, pattern: str) -> None:
        """`ValueError` with the reason if it is no pattern."""
        ...

    def matching(self, pattern: str, names: Iterable[str]) -> Sequence[str]:
        """Those of the names that the pattern matches from end to end; `ValueError` if it is no pattern."""
        ...


class NoRegexes:
    """Matches nothing and takes no pattern: for whoever has no matcher."""

    def check_pattern(self, pattern: str) -> None:  # noqa: ARG002
        raise ValueError("regular expressions are not supported here")

    def matching(self, pattern: str, names: Iterable[str]) -> Sequence[str]:  # noqa: ARG002
        return ()


class Matching(NamedTuple):
    """With what patterns are held against topics."""

    matcher: RegexMatcher
    image: MetadataImage
    may_see: Callable[[str], bool]  # whether whoever asks may know of a topic

    def topics(self, pattern: str, names: Iterable[str]) -> frozenset[str]:
        return frozenset(name for name in self.matcher.matching(pattern, names) if self.may_see(name))


class Regexes:
    """The regular expressions of a group, in one decision about one of its members."""

    def __init__(self, group: ConsumerGroup, watch: Watch, draft: Draft, matching: Matching) -> None:
        self._group = group
        self._watch = watch
        self._draft = draft
        self._matching = matching
        self.resolved: dict[str, Resolved] = dict(group.resolved)
        self.is_changed = False  # whether members read other topics now

    def update(self, before: Member, after: Member) -> None:
        """Take up what the member changed, and ask anew if it is time."""
        if before.regex != after.regex:
            self._leave(before.regex)
            if after.regex:
                self._enter(after.regex)
            self.is_changed = True
        if self.resolved and self._is_due():
            self._refresh()

    def _leave(self, regex: str) -> None:
        if regex and self._group.regex_counts[regex] <= 1 and self.resolved.pop(regex, None) is not None:
            self._draft.records.append(regex_end_record(self._group.group_id, regex))

    def _enter(self, regex: str) -> None:
        if regex in self.resolved:
            return
        if not self.resolved:
            self._watch.matched, self._watch.matched_ms = self._matching.image.topics, self._draft.now.ms
        self._resolve(regex, self._matching.topics(regex, self._matching.image.topics))

    def _is_due(self) -> bool:
        """Topics are looked for when some were created, and now and then because what may be seen can change."""
        last_ms, topics = self._watch.matched_ms, self._matching.image.topics
        is_early = last_ms is not None and self._draft.now.ms - last_ms < REGEX_REFRESH_MIN_MS
        return self._must_start_over() or (not is_early and self._watch.matched is not topics)

    def _must_start_over(self) -> bool:
        last_ms, interval_ms = self._watch.matched_ms, self._draft.settings.group_consumer_regex_refresh_interval_ms
        return last_ms is None or self._draft.now.ms - last_ms >= interval_ms

    def _refresh(self) -> None:
        """Usually only topics that are new are looked at, for there may be many others."""
        topics, watch = self._matching.image.topics, self._watch
        looked_at = {} if self._must_start_over() or watch.matched is None else watch.matched
        names = [name for name in topics if name not in looked_at]
        for regex, old in list(self.resolved.items()):
            new = self._matched_anew(regex, old, looked_at, names)
            if new != old.topics:
                self._resolve(regex, new)
        watch.matched, watch.matched_ms = topics, self._draft.now.ms

    def _matched_anew(
        self, regex: str, old: Resolved, looked_at: Container[str], names: Iterable[str]
    ) -> frozenset[str]:
        """A pattern that only the broker who took it could read matches what it matched then."""
        still = frozenset(name for name in old.topics if name in self._matching.image.topics)
        try:
            return frozenset(name for name in still if name in looked_at) | self._matching.topics(regex, names)
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


def without(group: ConsumerGroup, leavers: Iterable[Member]) -> Mapping[str, Resolved]:
    """The regular expressions that are still somebody's when these members are gone."""
    counts = group.regex_counts.copy()
    counts.subtract(member.regex for member in leavers if member.regex)
    return {regex: each for regex, each in group.resolved.items() if counts[regex] > 0}
