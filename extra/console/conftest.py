"""A cluster with data, its console, and a Chromium."""

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright
from shop_cluster import Scene, scene

from moldau_dev.console import serve

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="session")
def running() -> Iterator[Scene]:
    with scene() as started:
        yield started


@pytest.fixture(scope="session")
def url(running: Scene) -> Iterator[str]:
    with serve(running.bootstrap) as address:
        yield address


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # Chromium cannot make its sandbox as root, as in most containers.
        arguments = ["--no-sandbox"] if os.getuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()
