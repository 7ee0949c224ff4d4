"""A metadata publisher that is closing publishes no more images."""

import asyncio
from collections.abc import Awaitable, Callable

from moldau.broker.cluster.metadata_publisher import MetadataPublisher
from moldau.machines.metadata.delta import MetadataDelta
from moldau.machines.metadata.image import MetadataImage


class SlowPartitions:
    """Applies images, each after a delay."""

    def __init__(self) -> None:
        self.images: list[MetadataImage] = []
        self.may_go_on = asyncio.Event()

    async def follow(self, image: MetadataImage, _: MetadataDelta) -> None:
        self.images.append(image)
        await self.may_go_on.wait()


def run(act: Callable[[MetadataPublisher, SlowPartitions], Awaitable[None]]) -> list[MetadataImage]:
    async def main() -> list[MetadataImage]:
        followed = SlowPartitions()
        failures: list[BaseException] = []
        await act(MetadataPublisher(followed.follow, failures.append), followed)
        await asyncio.sleep(0)
        assert not failures
        return followed.images

    return asyncio.run(main())


def test_image_committed_after_close_is_not_published() -> None:
    async def act(publishing: MetadataPublisher, followed: SlowPartitions) -> None:
        followed.may_go_on.set()
        await publishing.close()
        publishing.committed(MetadataImage(), MetadataDelta())

    assert run(act) == []


def test_close_waits_only_for_the_image_being_published() -> None:
    first, second = MetadataImage(), MetadataImage()

    async def act(publishing: MetadataPublisher, followed: SlowPartitions) -> None:
        publishing.committed(first, MetadataDelta())
        await asyncio.sleep(0)  # it is being published
        publishing.committed(second, MetadataDelta())
        closing = asyncio.create_task(publishing.close())
        await asyncio.sleep(0)
        assert not closing.done()
        followed.may_go_on.set()
        await closing
        assert publishing.image is first

    assert len(run(act)) == 1
