"""The metadata log on a disk: what was answered is there after any stop, snapshots take the place of the log."""

from metadata_host import MetadataHost, create, register

from moldau.broker.drivers.metadata import MetadataDriver


def test_what_was_answered_is_there_after_a_restart() -> None:
    host = MetadataHost()

    async def first(driver: MetadataDriver) -> int:
        epoch = await register(driver)
        await create(driver, "orders", 3)
        return epoch

    async def second(driver: MetadataDriver) -> None:
        assert driver.image.brokers[1].epoch == epoch
        assert len(driver.image.topics["orders"].partitions) == 3
        assert driver.image.topic_configs("orders") == {"retention.ms": "5"}
        assert driver.image.epoch == driver.epoch == 2

    epoch = host.run(first)
    host.run(second)
    assert not host.failures
