"""The OpenAPI description of the gateway, as JSON and as a page that needs no script."""

import json
from functools import cache
from html import escape
from typing import Any

from fastapi import APIRouter
from fastapi.openapi.utils import get_openapi
from starlette.responses import HTMLResponse, JSONResponse

from moldau import __version__
from moldau.gateway.produce_body import ProduceBody

REFERENCES = "#/components/schemas/{model}"


def openapi_routes(prefix: str, router: APIRouter) -> APIRouter:
    """Return the routes of the description; they need no login, because they tell nothing about the cluster."""

    @cache
    def description() -> dict[str, Any]:
        found = get_openapi(
            title="Moldau REST gateway",
            version=__version__,
            description="Produce and read records, and administer topics, over HTTP.",
            routes=router.routes,
        )
        body = ProduceBody.model_json_schema(ref_template=REFERENCES)  # read by its route, which bounds its memory
        found["components"]["schemas"] |= {**body.pop("$defs"), "ProduceBody": body}
        found["components"]["securitySchemes"] = {"basic": {"type": "http", "scheme": "basic"}}
        found["security"] = [{}, {"basic": []}]
        return found

    routes = APIRouter(include_in_schema=False)

    @routes.get("/openapi.json")
    async def show_json() -> JSONResponse:
        return JSONResponse(description())

    @routes.get("/docs")
    async def show_page() -> HTMLResponse:
        return HTMLResponse(_page(description(), f"{prefix}/openapi.json"))

    return routes


def _page(description: dict[str, Any], source: str) -> str:
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        f"<title>{escape(description['info']['title'])}</title>",
        f"<h1>{escape(description['info']['title'])} {escape(description['info']['version'])}</h1>",
        f"<p>{escape(description['info']['description'])} "
        f'The same as <a href="{escape(source)}">OpenAPI</a>, for tools.</p>',
    ]
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            parts += _operation(method.upper(), path, operation)
    parts.append("<h2>Types</h2>")
    for name, schema in description["components"]["schemas"].items():
        parts.append(f'<h3 id="{escape(name)}">{escape(name)}</h3><pre>{escape(json.dumps(schema, indent=2))}</pre>')
    return "\n".join(parts)


def _operation(method: str, path: str, operation: dict[str, Any]) -> list[str]:
    lines = [f"<h2>{method} {escape(path)}</h2>", f"<p>{escape(operation.get('description', ''))}</p>"]
    parameters = operation.get("parameters", [])
    if parameters:
        rows = "".join(
            f"<li><code>{escape(each['name'])}</code> ({escape(each['in'])}"
            f"{', required' if each.get('required') else ''}) {escape(each.get('description', ''))}</li>"
            for each in parameters
        )
        lines.append(f"<ul>{rows}</ul>")
    for content in operation.get("requestBody", {}).get("content", {}).values():
        name = content["schema"]["$ref"].rpartition("/")[2]
        lines.append(f'<p>Body: <a href="#{escape(name)}">{escape(name)}</a></p>')
    return lines
