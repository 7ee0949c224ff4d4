"""Settings of a member of the metadata quorum."""

from dataclasses import dataclass

from moldau.model.settings import Kind, setting
from moldau.model.units import MiB


@dataclass(frozen=True, kw_only=True)
class MemberSettings:
    """Fetching the metadata log, and joining the voters."""

    quorum_fetch_max_bytes: int = setting(
        "controller.quorum.fetch.max.bytes",
        MiB,
        kind=Kind.INT,
        at_least=1,
        doc="The bytes of one fetch of the metadata log; one whole batch is always fetched.",
    )
    quorum_fetch_snapshot_max_bytes: int = setting(
        "controller.quorum.fetch.snapshot.max.bytes",
        MiB,
        kind=Kind.INT,
        at_least=1,
        doc="The bytes of one fetch of a metadata snapshot.",
    )
    quorum_auto_join_enable: bool = setting(
        "controller.quorum.auto.join.enable",
        False,
        doc="A controller that is not a voter joins the voters; it replaces a voter with its id and another directory.",
    )
