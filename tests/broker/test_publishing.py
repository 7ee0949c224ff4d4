"""A broker that is closing puts no more metadata into effect."""

import asyncio
from collections.abc import Awaitable, Callable

from moldau.broker.cluster.metadata_publisher import MetadataPublisher
from moldau.machines.metadata.delta import MetadataDelta
from moldau.machines.metadata.image import MetadataImage


class SessionPartition:
    """Who puts images into effect, as slowly as it is told to."""

    def __init__(self) -> None:
        self.images: list[MetadataImage] = []
        self.may_go_on = asyncio.Event()

    async def follow(self, image: MetadataImage, _: MetadataDelta) -> None:
        self.images.append(image)
        await self.may_go_on.wait()


def run(act: Callable[[MetadataPublisher, SessionPartition], Awaitable[None]]) -> list[MetadataImage]:
    async def main() -> list[MetadataImage]:
        followed = SessionPartition()
        failures: list[BaseException] = []
        await act(MetadataPublisher(followed.follow, failures.append), followed)
        await asyncio.sleep(0)
        assert not failures
        return followed.images

    return asyncio.run(main())


def test_what_is_committed_after_the_end_is_left_for_the_next_start() -> None:
    async def act(publishing: MetadataPublisher, followed: SessionPartition) -> None:
        followed.may_go_on.set()
        await publishing.close()
        publishing.committed(MetadataImage(), MetadataDelta())

    assert run(act) == []


def test_closing_waits_for_the_image_under_way_and_for_no_other() -> None:
    first, second = MetadataImage(), MetadataImage()

    async def act(publishing: MetadataPublisher, followed: SessionPartition) -> None:
        publishing.committed(first, MetadataDelta())
        await asyncio.sleep(0)  # it is under way
        publishing.committed(second, MetadataDelta())
        closing = asyncio.create_task(publishing.close())
        await asyncio.sleep(0)
        assert not closing.done()
        followed.may_go_on.set()
        await closing
        assert publishing.image is first

    assert len(run(act)) == 1
