"""How a node keeps its copy of the metadata log, and whether it asks to vote."""

from dataclasses import dataclass

from moldau.model.settings import Kind, setting
from moldau.model.units import MiB


@dataclass(frozen=True, kw_only=True)
class MemberSettings:
    """What one member of the quorum does by itself."""

    quorum_fetch_max_bytes: int = setting(
        "controller.quorum.fetch.max.bytes",
        MiB,
        kind=Kind.INT,
        at_least=1,
        doc="How much of the metadata log is fetched from its leader at once; one whole batch always is.",
    )
    quorum_fetch_snapshot_max_bytes: int = setting(
        "controller.quorum.fetch.snapshot.max.bytes",
        MiB,
        kind=Kind.INT,
        at_least=1,
        doc="How much of a snapshot of the metadata is fetched from the leader at once.",
    )
    quorum_auto_join_enable: bool = setting(
        "controller.quorum.auto.join.enable",
        False,
        doc="Let a controller that does not vote ask to be made a voter, in the place of an older self if need be.",
    )
