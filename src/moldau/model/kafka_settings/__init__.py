"""Tables of the settings that Kafka 4.x has and nothing here reads: accepted, checked and listed, without effect.

They let an existing server.properties, Terraform plan or Connect cluster work unchanged. A name that gains an effect
moves out of its table, to the settings class beside the code that reads it.
"""

from collections.abc import Mapping
from typing import Final

from moldau.model.kafka_settings import cluster, coordinators, groups, logs, network, operations, removed, security
from moldau.model.settings import Setting

BROKER_SETTINGS: Final[Mapping[str, Setting]] = {
    each.name: each for table in (network, logs, cluster, coordinators, security, operations) for each in table.ROWS
}
GROUP_SETTINGS: Final[Mapping[str, Setting]] = {each.name: each for each in groups.ROWS}

# Plug-ins of Kafka take settings of their own under these prefixes. They may be secrets, so they are kept as such.
PLUGIN_PREFIXES: Final = ("config.providers.", "rlmm.config.", "rsm.config.")


def is_removed(name: str) -> bool:
    """Whether Kafka had a broker setting of this name until 4.0."""
    return name in removed.NAMES or name.startswith(removed.PREFIXES)
