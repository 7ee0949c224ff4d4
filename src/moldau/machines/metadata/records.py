"""Records of the metadata log, and the version each is written with."""

from dataclasses import dataclass
from typing import Final

from moldau.wire import messages

METADATA_VERSION_FEATURE: Final = "metadata.version"

METADATA_VERSION: Final = 25
"""The written level of `metadata.version`: 4.0-IV3."""

METADATA_VERSION_HIGHEST: Final = 30
"""4.3-IV0, the last level whose records are all supported."""

METADATA_VERSION_LOWEST: Final = 19
"""3.7-IV4, the first level at which every record is written as here (brokers register log directories)."""

METADATA_VERSION_OF_ELR: Final = 23
"""4.0-IV1, the first level with ELR fields in partition records."""


@dataclass(frozen=True, slots=True)
class EpochBegan:
    """A new leader of the metadata log: the machine's view of a LeaderChange control record."""

    epoch: int


Record = (
    messages.AbortTransactionRecord
    | messages.AccessControlEntryRecord
    | messages.BeginTransactionRecord
    | messages.BrokerRegistrationChangeRecord
    | messages.ClearElrRecord
    | messages.ClientQuotaRecord
    | messages.ConfigRecord
    | messages.DelegationTokenRecord
    | messages.EndTransactionRecord
    | messages.FeatureLevelRecord
    | messages.FenceBrokerRecord
    | messages.NoOpRecord
    | messages.PartitionChangeRecord
    | messages.PartitionRecord
    | messages.ProducerIdsRecord
    | messages.RegisterBrokerRecord
    | messages.RegisterControllerRecord
    | messages.RemoveDelegationTokenRecord
    | messages.RemoveAccessControlEntryRecord
    | messages.RemoveTopicRecord
    | messages.RemoveUserScramCredentialRecord
    | messages.TopicRecord
    | messages.UnfenceBrokerRecord
    | messages.UnregisterBrokerRecord
    | messages.UserScramCredentialRecord
    | messages.ZkMigrationStateRecord
    | EpochBegan
)

_VERSIONS: Final[dict[type, int]] = {
    messages.BrokerRegistrationChangeRecord: 2,
    messages.PartitionChangeRecord: 1,
    messages.PartitionRecord: 1,
    messages.RegisterBrokerRecord: 3,
}


_WITH_ELIGIBLE: Final = 2


def record_version(record: Record) -> int:
    """Return the version to write this record with at `METADATA_VERSION`; readers accept every version."""
    if isinstance(record, messages.PartitionRecord | messages.PartitionChangeRecord) and (
        record.eligible_leader_replicas is not None or record.last_known_elr is not None
    ):
        return _WITH_ELIGIBLE
    return _VERSIONS.get(type(record), 0)
