"""Golden folders of Apache Kafka and of earlier versions can be opened."""

from dataclasses import replace
from pathlib import Path

import pytest
from metadata_host import FOLDER, VOTER, MetadataHost, create, register

from moldau.broker.drivers.metadata import MetadataDriver
from moldau.broker.drivers.metadata_batches import read_records
from moldau.machines.metadata import MetadataImage
from moldau.machines.metadata.builder import ImageBuilder
from moldau.storage.log_dir import decode_id

GOLDEN = Path(__file__).parent / "golden"
DIRECTORIES = {"apache-kafka-4.0": decode_id("iiu_3rKOSkahj0nFx37Epg"), "moldau-0.1": VOTER.directory_id}


def host_with(name: str, *, without: str = "") -> MetadataHost:
    """Return a host whose disk holds a golden folder, without the files whose names end in `without`."""
    host = MetadataHost(voter=replace(VOTER, directory_id=DIRECTORIES[name]))
    disk = host.disk.mount()
    disk.make_directory(FOLDER)
    for path in sorted((GOLDEN / name).iterdir()):
        if not without or not path.name.endswith(without):
            file = disk.open(f"{FOLDER}/{path.name}", create=True)
            file.pwrite(path.read_bytes(), 0)
            file.fsync()
            file.close()
    return host


async def look(driver: MetadataDriver) -> MetadataImage:
    return driver.image


def from_log_alone(name: str) -> MetadataImage:
    builder = ImageBuilder(MetadataImage())
    for path in sorted((GOLDEN / name).glob("*.log")):
        for offset, record in read_records(path.read_bytes()):
            builder.apply(record, offset)
    return builder.finish()[0]


def test_apache_kafkas_snapshot_and_log_are_read() -> None:
    image = host_with("apache-kafka-4.0").run(look)
    assert sorted(image.topics) == sorted([*(f"late-{number}" for number in range(10)), "orders"])
    assert len(image.topics["orders"].partitions) == 4
    assert image.topic_configs("orders") == {"retention.ms": "7000", "cleanup.policy": "compact"}
    assert image.features["metadata.version"] == 25
    assert image.brokers[1].listeners[0].address.port == 29092
    assert list(image.controllers) == [1]
    assert image.next_producer_id == 1000
    assert image.epoch == 2  # Kafka's was the first


@pytest.mark.parametrize("name", ["apache-kafka-4.0", "moldau-0.1"])
def test_snapshot_equals_the_log_before_it(name: str) -> None:
    log = from_log_alone(name)
    for image in (host_with(name).run(look), host_with(name, without="0001.checkpoint").run(look)):
        assert (image.topics, image.topics_by_id, image.configs) == (log.topics, log.topics_by_id, log.configs)
        assert (image.brokers, image.controllers) == (log.brokers, log.controllers)
        assert (image.features, image.next_producer_id) == (log.features, log.next_producer_id)


@pytest.mark.parametrize("name", ["apache-kafka-4.0", "moldau-0.1"])
def test_foreign_folder_can_be_written_to(name: str) -> None:
    host = host_with(name)

    async def act(driver: MetadataDriver) -> MetadataImage:
        old = driver.image.brokers[1].epoch
        assert await register(driver, b"n") > old
        assert not (await create(driver, "new")).error
        await driver.take_snapshot()
        return driver.image

    before = host.run(act)
    assert all(partition.leader == 1 for topic in before.topics.values() for partition in topic.partitions)
    after = host.run(look)
    assert (before.topics, before.configs, before.brokers) == (after.topics, after.configs, after.brokers)


def test_own_folder_is_unchanged() -> None:
    image = host_with("moldau-0.1").run(look)
    assert sorted(image.topics) == ["b", "d"]
    assert image.topic_configs("b") == {"retention.ms": "5"}
    assert image.broker_configs(None) == {"log.cleaner.threads": "2"}
    assert image.next_producer_id == 2000
    assert image.brokers[1].epoch == 18
    assert [partition.leader_epoch for partition in image.topics["b"].partitions] == [2, 2]
