"""The console in Chromium, on a cluster of three brokers: every page, every theme, and what users do there."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect
from shop_cluster import COUNTRIES, Scene

PAGES = {
    "overview": ("#/overview", "Busiest topics"),
    "topics": ("#/topics", "many-0001"),
    "messages": ("#/topics/orders/messages", "customer-"),
    "partitions": ("#/topics/orders/partitions", "First offset"),
    "consumers": ("#/topics/orders/consumers", "billing"),
    "settings": ("#/topics/orders/settings", "retention.ms"),
    "hostile": ("#/topics/hostile/messages", "onerror"),
    "groups": ("#/groups", "billing"),
    "group": ("#/groups/billing", "Lag since this page was opened"),
    "schemas": ("#/schemas", "payments-value"),
    "schema": ("#/schemas/payments-value", "currency"),
    "decoded": ("#/topics/payments/messages", "CHF"),
    "brokers": ("#/brokers", "Metadata quorum"),
    "broker": ("#/brokers/1", "The largest of"),
    "broker-settings": ("#/brokers/1/settings", "num.io.threads"),
    "transactions": ("#/transactions", "checkout-1"),
    "transaction": ("#/transactions/checkout-1", "Coordinator"),
    "acls": ("#/security", "authorizer"),
    "users": ("#/security?tab=users", "SCRAM"),
    "quotas": ("#/security?tab=quotas", "There are no quotas"),
}
WIDE, PHONE = {"width": 1360, "height": 850}, {"width": 390, "height": 844}
LOOKS = {"light": ("light", WIDE), "dark": ("dark", WIDE), "phone": ("light", PHONE)}
FIRST_PAINT_MS_MAX = 1_000
SHOTS = os.environ.get("CONSOLE_SCREENSHOTS")  # a directory that keeps an image of each page


@contextmanager
def opened(chromium: Browser, url: str, look: str = "light") -> Iterator[Page]:
    """Yield a page that fails the test on errors of scripts and on requests to other hosts."""
    scheme, viewport = LOOKS[look]
    context = chromium.new_context(color_scheme=scheme, viewport=viewport, accept_downloads=True)
    page = context.new_page()
    page.set_default_timeout(15_000)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: problems.append(request.url) if host(request.url) != host(url) else None)
    yield page
    context.close()
    unexpected = [each for each in problems if "status of 4" not in each]
    assert not unexpected, unexpected


def host(url: str) -> str:
    return urlsplit(url).netloc


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", PAGES)
def test_page_shows_its_content_and_is_accessible(
    chromium: Browser, url: str, running: Scene, name: str, look: str
) -> None:
    path, content = PAGES[name]
    running.produce_orders(10)
    with opened(chromium, url, look) as page:
        page.goto(f"{url}/{path}")
        expect(page.locator("main")).to_contain_text(content)
        assert page.evaluate("document.documentElement.scrollWidth") <= LOOKS[look][1]["width"]
        violations = Axe().run(page).response["violations"]
        found = [(each["id"], [node["target"] for node in each["nodes"]]) for each in violations]
        assert not found, found
        if SHOTS:
            page.screenshot(path=str(Path(SHOTS) / f"{name}-{look}.png"))


def test_schema_is_compared_checked_and_registered(chromium: Browser, url: str) -> None:
    with opened(chromium, url) as page:
        page.goto(f"{url}/#/schemas/payments-value?version=1")
        page.get_by_label("Compare with").select_option("2")
        expect(page.locator(".added").filter(has_text="currency")).to_be_visible()
        page.get_by_label("Compare with").select_option("")
        page.get_by_role("button", name="New version").click()
        schema = page.get_by_label("Schema", exact=True)
        text = schema.input_value()
        schema.fill(text.replace('"long"', '"bytes"'))
        page.get_by_role("button", name="Check compatibility").click()
        expect(page.locator("dialog")).to_contain_text("not compatible")
        schema.fill(text.replace('"Payment"', '"Payment", "doc": "of a customer"'))
        page.get_by_role("button", name="Check compatibility").click()
        expect(page.locator("dialog .badge.good")).to_be_visible()
        page.get_by_role("button", name="Register").click()
        expect(page.get_by_role("combobox", name="Version", exact=True)).to_have_value("3")


def test_first_paint_and_search_are_within_a_second(chromium: Browser, url: str) -> None:
    with opened(chromium, url) as page:
        page.goto(f"{url}/#/topics")
        page.get_by_text("many-0001").wait_for()
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        assert paint < FIRST_PAINT_MS_MAX
        page.get_by_label("Search by name").fill("0299")
        expect(page.get_by_role("link", name="many-0299")).to_be_visible()
        expect(page.get_by_role("link", name="many-0001")).to_have_count(0)


def test_hostile_record_is_text_in_list_and_detail(chromium: Browser, url: str) -> None:
    with opened(chromium, url) as page:
        page.goto(f"{url}/#/topics/hostile/messages")
        page.get_by_role("button", name="Record 0 of partition 0").click()
        expect(page.locator("pre").first).to_contain_text('<img src=x onerror="window.attacked = true">')
        assert page.evaluate("window.attacked") is None
        assert page.locator("main img, main script").count() == 0
        page.get_by_role("link", name="Link to this record").click()
        expect(page.locator("pre").first).to_contain_text("<script>")
        assert page.evaluate("window.attacked") is None


def test_keyboard_reaches_pages_and_search(chromium: Browser, url: str) -> None:
    with opened(chromium, url) as page:
        page.goto(f"{url}/#/overview")
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        page.keyboard.press("g")
        page.keyboard.press("t")
        expect(page.get_by_role("heading", name="Topics")).to_be_visible()
        page.keyboard.press("/")
        page.keyboard.type("orders")
        expect(page.get_by_role("link", name="many-0001")).to_have_count(0)
        page.get_by_role("link", name="orders").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="orders")).to_be_visible()


def test_filter_expression_finds_records_and_bad_one_is_explained(chromium: Browser, url: str) -> None:
    with opened(chromium, url) as page:
        page.goto(f"{url}/#/topics/orders/messages")
        field = page.get_by_label("Filter expression")
        field.fill(f'value.country == "{COUNTRIES[2]}" and value.amount > 400')
        page.get_by_role("button", name="Search").click()
        expect(page.get_by_role("status").first).to_contain_text("searched")
        rows = page.locator(".records tbody tr")
        expect(rows.first).to_contain_text(COUNTRIES[2])
        assert all(f'"country": "{COUNTRIES[2]}"' in each for each in rows.all_inner_texts())
        field.fill("import os")
        page.get_by_role("button", name="Search").click()
        expect(page.get_by_role("alert")).to_contain_text("cannot be parsed")


def test_topic_is_created_filled_tailed_and_deleted(chromium: Browser, url: str) -> None:
    name = "from-the-browser"
    with opened(chromium, url) as page:
        page.goto(f"{url}/#/topics")
        page.get_by_role("button", name="Create topic").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Name", exact=True).fill(name)
        dialog.get_by_label("Partitions").fill("2")
        dialog.get_by_label("Settings").fill("retention.ms=3600000")
        dialog.get_by_role("button", name="Create").click()
        expect(page.get_by_role("heading", name=name)).to_be_visible()
        page.get_by_role("button", name="Live tail").click()
        expect(page.get_by_text("Waiting for new records")).to_be_visible()
        page.get_by_role("button", name="Produce").click()
        dialog.get_by_role("textbox", name="Value", exact=True).fill('{"from": "browser"}')
        dialog.get_by_role("button", name="Produce").click()
        expect(page.locator(".records tbody")).to_contain_text('{"from": "browser"}')
        page.get_by_role("button", name="Stop live tail").click()
        page.get_by_role("button", name=re.compile("^Record 0 of")).click()
        page.get_by_role("button", name="Edit and send again").click()
        dialog.get_by_role("textbox", name="Value", exact=True).fill('{"from": "again"}')
        dialog.get_by_role("button", name="Produce").click()
        expect(page.locator(".records tbody")).to_contain_text('{"from": "again"}')
        with page.expect_download() as download:
            page.get_by_role("link", name="NDJSON").click()
        lines = Path(download.value.path()).read_text().splitlines()
        assert {json.loads(each)["value"] for each in lines} == {'{"from": "browser"}', '{"from": "again"}'}
        page.get_by_role("button", name="Delete").click()
        assert dialog.get_by_role("button", name="Delete topic").is_disabled()
        dialog.get_by_role("textbox").fill(name)
        dialog.get_by_role("button", name="Delete topic").click()
        expect(page.get_by_role("heading", name="Topics")).to_be_visible()
        expect(page.get_by_role("link", name=name)).to_have_count(0)


def test_setting_is_edited_with_validation(chromium: Browser, url: str) -> None:
    with opened(chromium, url) as page:
        page.goto(f"{url}/#/topics/customers/settings")
        page.get_by_role("button", name="Edit retention.ms").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Value").fill("soon")
        dialog.get_by_role("button", name="Change").click()
        expect(dialog.get_by_role("alert")).to_contain_text("retention.ms")
        dialog.get_by_label("Value").fill("7200000")
        dialog.get_by_role("button", name="Change").click()
        expect(dialog).to_have_count(0)
        expect(page.locator("main")).to_contain_text("7200000")


def test_offsets_are_reset_after_a_dry_run(chromium: Browser, url: str, running: Scene) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    offsets = ConsumerGroupTopicPartitions("reports", [TopicPartition("orders", 0, 5), TopicPartition("orders", 1, 5)])
    for done in admin.alter_consumer_group_offsets([offsets]).values():
        done.result(30)
    with opened(chromium, url) as page:
        page.goto(f"{url}/#/groups/reports")
        page.get_by_role("button", name="Reset offsets").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Partitions").fill("0")
        dialog.get_by_label("To", exact=False).and_(page.locator("select")).select_option("start")
        assert dialog.get_by_role("button", name="Commit").is_disabled()
        dialog.get_by_role("button", name="Show what changes").click()
        expect(dialog.locator("tbody tr")).to_have_text(re.compile("0.*5.*0.*-5", re.DOTALL))
        dialog.get_by_label("Type").fill("reports")
        dialog.get_by_role("button", name="Commit").click()
        expect(dialog).to_have_count(0)
        row = page.locator("tbody tr", has_text="orders").first
        expect(row.locator("td").nth(2)).to_have_text("0")


def test_dead_broker_is_a_problem_on_the_overview(chromium: Browser, url: str, running: Scene) -> None:
    """The last test: it kills a broker, and starts it again."""
    with opened(chromium, url) as page:
        page.goto(f"{url}/#/overview")
        expect(page.get_by_text("The cluster is healthy.")).to_be_visible()
        running.cluster.kill(3)
        expect(page.get_by_role("alert").first).to_contain_text("broker 3 is fenced", timeout=30_000)
        page.goto(f"{url}/#/topics/orders/messages")
        expect(page.locator(".records tbody tr").first).to_be_visible()
        page.goto(f"{url}/#/brokers")
        expect(page.locator("main")).to_contain_text("fenced")
        running.cluster.start(3)
        page.goto(f"{url}/#/overview")
        expect(page.get_by_text("The cluster is healthy.")).to_be_visible(timeout=60_000)
