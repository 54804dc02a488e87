"""Routes that report and resize partitions."""

from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from sluice.gateway.config.restricted import ApiGroup, Restrictions
from sluice.gateway.http.routes.common import body_schema, json_body, known_query, router
from sluice.gateway.partitions.inventory import Inventory
from sluice.gateway.partitions.scaling import Scaling
from sluice.gateway.partitions.worker_memory import WorkerMemory
from sluice.gateway.resizing.resizing import Resizing
from sluice.models.errors import RequestError

_SHARE = {
    "cores": {
        "type": "array",
        "items": {"type": "integer"},
        "description": "for a partition of cores: the complete new set",
    },
    "share_percent": {
        "type": "integer",
        "description": "for a share of a GPU: the new percentage of its multiprocessors",
    },
}


def partition_router(inventory: Inventory, scaling: Scaling, restrictions: Restrictions) -> APIRouter:
    """Reports the partitions of the workers, each with the proof of its isolation or the reasons why it fails.

    It also reports the numbers of partitions that scaled classes are to have.
    """
    routes = router(ApiGroup.STATISTICS, restrictions)
    memory = WorkerMemory(inventory)

    @routes.get("/v2/sluice/partitions", dependencies=[known_query()])
    async def partitions() -> Response:
        await memory.refresh()
        body = msgspec.json.encode({"partitions": inventory.report(memory.used)})
        return Response(body, media_type="application/json")

    @routes.get("/v2/sluice/scaling", dependencies=[known_query()])
    async def classes() -> Response:
        return Response(msgspec.json.encode({"classes": scaling.report()}), media_type="application/json")

    return routes


def resize_router(resizing: Resizing, restrictions: Restrictions) -> APIRouter:
    """Resizes a partition; the answer is sent when the partition serves on its new share."""
    routes = router(ApiGroup.PARTITIONS, restrictions)

    @routes.post("/v2/sluice/partitions/{name}/resize", dependencies=[known_query()], openapi_extra=body_schema(_SHARE))
    async def resize(name: str, request: Request) -> Response:
        partition = await resizing.resize(name, *_share(await json_body(request)))
        return Response(msgspec.json.encode(partition), media_type="application/json")

    return routes


def _share(body: dict[str, Any]) -> tuple[list[int] | None, int | None]:
    if unknown := sorted(body.keys() - _SHARE.keys()):
        raise RequestError(f"'{unknown[0]:.80}' is unknown; expected 'cores' or 'share_percent'")
    cores, percent = body.get("cores"), body.get("share_percent")
    if cores is not None and not (isinstance(cores, list) and cores and all(type(core) is int for core in cores)):
        raise RequestError(f"'cores' must be a list of core numbers, such as [0, 1], got {cores!r:.80}")
    if percent is not None and type(percent) is not int:
        raise RequestError(f"'share_percent' must be a whole number, such as 40, got {percent!r:.80}")
    return cores, percent
