"""The file `bootstrap.checkpoint` of a formatted directory: records with which the metadata of a new cluster begins.

Apache Kafka writes and reads the same file. Of its records, those of SCRAM users and ACLs are used here: they let the
first clients and nodes authenticate and be authorized. Features are chosen by the first active controller.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Final

from moldau.broker.drivers.metadata_batches import read_records
from moldau.broker.drivers.metadata_snapshots import SnapshotId, snapshot_batches
from moldau.broker.drivers.quorum_records import snapshot_header
from moldau.machines.access.acls import AclBinding
from moldau.machines.access.scram import ScramCredential, ScramUser
from moldau.machines.metadata.credentials import credential_of_record
from moldau.machines.metadata.features import bootstrap_records
from moldau.machines.metadata.image import MetadataImage
from moldau.machines.metadata.records import Record
from moldau.machines.metadata.settings import MetadataSettings
from moldau.model.errors import KafkaError
from moldau.model.ports import Disk
from moldau.storage.files import replace_file
from moldau.wire import messages

NAME: Final = "bootstrap.checkpoint"
NO_ACLS: Final[Mapping[bytes, AclBinding]] = {}
Credentials = dict[ScramUser, ScramCredential]
_USED: Final = (messages.UserScramCredentialRecord, messages.AccessControlEntryRecord)


def write_bootstrap(
    disk: Disk, data_folder: str, credentials: Credentials, now_ms: int, acls: Mapping[bytes, AclBinding] = NO_ACLS
) -> None:
    """Write the file. It has features too, without which Kafka does not accept it."""
    features = {
        each.name: each.feature_level
        for each in bootstrap_records(MetadataSettings())
        if isinstance(each, messages.FeatureLevelRecord)
    }
    image = MetadataImage(features=features, scram_credentials=credentials, acls=acls)
    batches = snapshot_batches(SnapshotId(0, 0), image, [snapshot_header(now_ms)], now_ms)
    replace_file(disk, f"{data_folder}/{NAME}", b"".join(batches))


def read_bootstrap(disk: Disk, data_folder: str) -> list[Record]:
    """Return the records of SCRAM users and ACLs in the file, none if there is no file."""
    path = f"{data_folder}/{NAME}"
    if not disk.exists(path):
        return []
    try:
        records = [record for _, record in read_records(disk.read(path))]
    except KafkaError as error:
        raise OSError(f"{path} cannot be read: {error}") from None
    return [each for each in records if isinstance(each, _USED)]


async def replayed_credentials(
    bootstrap: Iterable[Record], log: AsyncIterator[Iterable[tuple[int, Record]]]
) -> Credentials:
    """Return the credentials that a log leads to, committed or not."""
    credentials: Credentials = {}
    _apply(credentials, bootstrap)
    async for batch in log:
        _apply(credentials, (record for _, record in batch))
    return credentials


def _apply(credentials: Credentials, records: Iterable[Record]) -> None:
    for record in records:
        match record:
            case messages.UserScramCredentialRecord():
                credentials[ScramUser(record.name, record.mechanism)] = credential_of_record(record)
            case messages.RemoveUserScramCredentialRecord():
                credentials.pop(ScramUser(record.name, record.mechanism), None)
