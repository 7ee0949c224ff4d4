"""Where a node finds its controllers, and how it stays in touch with them."""

from dataclasses import dataclass

from moldau.model.settings import setting


def _non_empty(parts: tuple[str, ...]) -> str | None:
    return None if parts else "it must not be empty"


@dataclass(frozen=True, kw_only=True)
class QuorumSettings:
    """Who keeps the metadata. `moldau.model.quorum.resolve_quorum` makes sense of them together."""

    quorum_voters: tuple[str, ...] = setting(
        "controller.quorum.voters",
        (),
        check=_non_empty,
        doc="The voters of a fixed quorum, as id@host:port; without it the metadata log itself says who votes.",
    )
    quorum_bootstrap_servers: tuple[str, ...] = setting(
        "controller.quorum.bootstrap.servers",
        (),
        check=_non_empty,
        doc="Controllers, as host:port, that are asked who leads the quorum.",
    )
