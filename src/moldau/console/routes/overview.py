"""The overview: health, counts, and totals whose growth the page shows as rates."""

from typing import Any, Final

from fastapi import APIRouter, Request

from moldau.client.groups import Groups
from moldau.client.health import Health, check_health
from moldau.client.types import LATEST
from moldau.console.access import Viewer
from moldau.console.offset_lookup import look_up_offsets, places_of

router = APIRouter()

UNHEALTHY_SHOWN_MAX: Final = 100
PROBLEMS_MAX: Final = 100
SAMPLED_PARTITIONS_MAX: Final = 20_000
BUSIEST_MAX: Final = 5_000
RESPONSE_MS_MAX: Final = 3_000


@router.get("/overview")
async def describe(session: Viewer) -> dict[str, Any]:
    health = await check_health(session.client)
    cluster = health.cluster
    return {
        "cluster_id": cluster.cluster_id,
        "controller": cluster.controller,
        "brokers": [
            {
                "id": each.node_id,
                "host": each.host,
                "port": each.port,
                "rack": each.rack,
                "is_fenced": each.is_fenced,
                "is_unreachable": each.node_id in health.unreachable,
            }
            for each in cluster.brokers
        ],
        "topics": health.topics,
        "partitions": health.partitions,
        "offline": len(health.offline),
        "under_min_isr": len(health.under_min_isr),
        "under_replicated": len(health.under_replicated),
        "reassigning": health.reassigning,
        "is_healthy": health.is_healthy,
        "problems": list(health.problems())[:PROBLEMS_MAX],
        "advice": list(health.advice())[:PROBLEMS_MAX],
        "unhealthy": _unhealthy(health),
    }


@router.get("/totals")
async def sample(request: Request, session: Viewer) -> dict[str, Any]:
    """Return end offsets per topic and committed offsets per group: the page computes rates from two samples."""
    topics = await session.topics.all()
    places = places_of(topics.values())
    ends: dict[str, int] = {}
    if len(places) <= SAMPLED_PARTITIONS_MAX:
        for place, offset in (await look_up_offsets(session.client, topics, dict.fromkeys(places, LATEST))).items():
            if not topics[place.topic].is_internal:
                ends[place.topic] = ends.get(place.topic, 0) + offset
    groups, _ = await Groups(session.client).list_reachable(RESPONSE_MS_MAX)
    return {
        "at_ms": request.app.state.clock.monotonic_ms(),
        "is_sampled": len(places) <= SAMPLED_PARTITIONS_MAX,
        "records": sum(ends.values()),
        "topics": ends if len(ends) <= BUSIEST_MAX else {},
        "groups": len(groups),
    }


def _unhealthy(health: Health) -> list[dict[str, Any]]:
    return [
        {
            "topic": each.partition.topic,
            "partition": each.partition.partition,
            "leader": each.leader,
            "replicas": each.replicas,
            "isr": each.isr,
            "is_offline": each.is_offline,
            "is_under_min_isr": each.is_under_min_isr,
        }
        for each in health.unhealthy[:UNHEALTHY_SHOWN_MAX]
    ]
