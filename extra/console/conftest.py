"""A cluster with data, its console, and a Chromium."""

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright
from shop_cluster import Scene, scene

from moldau_dev.console import Browser as Pages
from moldau_dev.console import serve
from moldau_dev.gateway import Gateway

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")

PAYMENT = '{"type":"record","name":"Payment","fields":[{"name":"id","type":"long"},{"name":"amount","type":"double"}]}'


@pytest.fixture(scope="session")
def running() -> Iterator[Scene]:
    with scene() as started:
        yield started


@pytest.fixture(scope="session")
def url(running: Scene) -> Iterator[str]:
    with serve(running.bootstrap) as address:
        add_schemas(address)
        yield address


def add_schemas(address: str) -> None:
    """Register two versions of a schema, and produce records with the later one."""
    browser, gateway = Pages(address).open(), Gateway(address)
    for schema in (PAYMENT, PAYMENT.replace("]}", ',{"name":"currency","type":"string","default":"CHF"}]}')):
        browser.post("/schemas/subjects/payments-value/versions", {"text": schema})
    records = [{"key": f"p-{number}", "value": {"id": number, "amount": number * 1.5}} for number in range(20)]
    body = {"value_schema": {"subject": "payments-value"}, "records": records}
    assert gateway.post("/topics/payments/produce", body).status == 200


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # Chromium cannot make its sandbox as root, as in most containers.
        arguments = ["--no-sandbox"] if os.getuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()
