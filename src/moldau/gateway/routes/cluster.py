"""Health and brokers of the cluster."""

from typing import Annotated, Any

from fastapi import APIRouter, Path

from moldau.console.routes import configs as config_pages
from moldau.console.routes import overview
from moldau.gateway.access import Reader

router = APIRouter(tags=["cluster"])


@router.get("/cluster")
async def describe_cluster(caller: Reader) -> dict[str, Any]:
    """Describe the brokers, the health of the partitions, and problems with advice."""
    return await overview.describe(caller.session)


@router.get("/brokers/{broker}/configs")
async def describe_broker_configs(broker: Annotated[int, Path(ge=0, lt=2**31)], caller: Reader) -> dict[str, Any]:
    """Return the settings of a broker with their sources."""
    return await config_pages.describe("broker", str(broker), caller.session)
