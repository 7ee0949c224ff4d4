"""Settings of Kafka 4.x that are accepted, validated and listed, but have no effect.

They let an existing server.properties, Terraform plan or Connect cluster work unchanged. A setting that gains an effect
moves from its table to the settings class beside the code that reads it.
"""

from collections.abc import Mapping
from typing import Final

from moldau.model.kafka_settings import cluster, coordinators, groups, logs, network, operations, removed, security
from moldau.model.settings import Setting

BROKER_SETTINGS: Final[Mapping[str, Setting]] = {
    each.name: each for table in (network, logs, cluster, coordinators, security, operations) for each in table.ROWS
}
GROUP_SETTINGS: Final[Mapping[str, Setting]] = {each.name: each for each in groups.ROWS}

# Kafka plug-ins have settings under these prefixes. They may be secrets, so they are treated as such.
PLUGIN_PREFIXES: Final = ("config.providers.", "rlmm.config.", "rsm.config.")


def is_removed(name: str) -> bool:
    """Return whether Kafka 4.0 removed this broker setting."""
    return name in removed.NAMES or name.startswith(removed.PREFIXES)
