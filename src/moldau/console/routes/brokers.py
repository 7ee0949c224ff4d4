"""Brokers, the metadata quorum, and ongoing reassignments."""

from typing import Any, Final

from fastapi import APIRouter
from pydantic import BaseModel

from moldau.client.brokers import Brokers, BrokerState
from moldau.client.errors import check
from moldau.client.quorum import Quorum, QuorumReplica, QuorumView
from moldau.client.reassignments import Reassignments
from moldau.console.access import Editor, Viewer
from moldau.wire import messages

router = APIRouter()

REASSIGNMENTS_SHOWN_MAX: Final = 500
LOG_DIR_TOPICS_MAX: Final = 100


class Cordon(BaseModel):
    """Whether a broker gets no new partitions."""

    is_cordoned: bool


@router.get("/brokers")
async def list_brokers(session: Viewer) -> dict[str, Any]:
    states = await Brokers(session.client).all()
    return {"brokers": [_broker(each) for each in states], "controller": session.client.metadata.controller}


@router.get("/brokers/{node_id}/log-dirs")
async def describe_log_dirs(node_id: int, session: Viewer) -> dict[str, Any]:
    """Return the log dirs of a broker with their largest topics."""
    response = await session.client.send(messages.DescribeLogDirsRequest(topics=None), node=node_id)
    check(response.error_code)
    return {"log_dirs": [_log_dir(each) for each in response.results]}


@router.put("/brokers/{node_id}/cordon")
async def cordon(node_id: int, wanted: Cordon, session: Editor) -> dict[str, Any]:
    brokers = Brokers(session.client)
    await (brokers.cordon(node_id) if wanted.is_cordoned else brokers.uncordon(node_id))
    return {"node_id": node_id, "is_cordoned": wanted.is_cordoned}


@router.get("/quorum")
async def describe_quorum(session: Viewer) -> dict[str, Any]:
    view = await Quorum(session.client).describe()
    return {
        "leader": view.leader_id,
        "epoch": view.epoch,
        "high_watermark": view.high_watermark,
        "end_offset": view.end_offset,
        "voters": [_replica(view, each) for each in view.voters],
        "observers": [_replica(view, each) for each in view.observers],
    }


@router.get("/reassignments")
async def list_reassignments(session: Viewer) -> dict[str, Any]:
    ongoing = await Reassignments(session.client).ongoing()
    rows = [
        {
            "topic": place.topic,
            "partition": place.partition,
            "replicas": each.replicas,
            "adding": each.adding,
            "removing": each.removing,
        }
        for place, each in list(ongoing.items())[:REASSIGNMENTS_SHOWN_MAX]
    ]
    return {"reassignments": rows, "total": len(ongoing)}


def _broker(state: BrokerState) -> dict[str, Any]:
    return {
        "id": state.node_id,
        "address": str(state.address) if state.address else None,
        "rack": state.rack,
        "is_fenced": state.is_fenced,
        "is_cordoned": state.is_drained,
        "replicas": state.replicas,
        "out_of_sync": state.out_of_sync,
        "leaders": state.leaders,
        "preferred": state.preferred,
        "size_bytes": state.size_bytes,
        "free_bytes": state.free_bytes,
    }


def _replica(view: QuorumView, replica: QuorumReplica) -> dict[str, Any]:
    return {
        "id": replica.node_id,
        "directory_id": replica.directory_id.hex(),
        "end_offset": replica.end_offset,
        "lag": view.lag(replica),
        "behind_ms": view.behind_ms(replica),
        "listeners": [f"{name}://{address}" for name, address in replica.listeners],
    }


def _log_dir(log_dir: Any) -> dict[str, Any]:
    sizes = sorted(
        ((sum(each.partition_size for each in topic.partitions), topic.name) for topic in log_dir.topics), reverse=True
    )
    return {
        "path": log_dir.log_dir,
        "error_code": log_dir.error_code,
        "total_bytes": log_dir.total_bytes,
        "usable_bytes": log_dir.usable_bytes,
        "size_bytes": sum(size for size, _ in sizes),
        "topics": [{"name": name, "size_bytes": size} for size, name in sizes[:LOG_DIR_TOPICS_MAX]],
        "topics_total": len(sizes),
    }
