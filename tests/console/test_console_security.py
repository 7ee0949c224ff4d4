"""Security of the console: login, ACLs of the user, CSRF, host names, headers."""

from collections.abc import Iterator

import pytest

from moldau.testing import Broker
from moldau_dev.console import API, Browser, RequestFailed, serve, text

ADMIN = "admin"
PASSWORD = "not-a-secret"
USERS = ("ann", "ben")


@pytest.mark.proves("A5", part="other sites are kept out")
def test_change_without_the_csrf_token_is_rejected(browser: Browser) -> None:
    for token in ("", "0" * 64, "ü"):
        browser.csrf_token = token.encode().decode("latin-1")
        assert browser.error("POST", "/topics", {"name": "forged"}) == (403, "csrf_token")
        assert browser.error("POST", "/topics/any/read", {}) == (403, "csrf_token")


@pytest.mark.proves("A5", part="other sites are kept out")
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "localhost.evil.example", "", "127.0.0.1.evil.example"]
)
def test_unknown_host_name_is_rejected(browser: Browser, host: str) -> None:
    reply = browser.send("GET", f"{API}/session", headers={"Host": host or " "})
    assert reply.status in (400, 421)


@pytest.mark.parametrize("host", ["localhost:1", "[::1]:8080", "10.0.0.1"])
def test_address_and_localhost_are_accepted(browser: Browser, host: str) -> None:
    assert browser.send("GET", f"{API}/session", headers={"Host": host}).status == 200


@pytest.mark.proves("A5", part="other sites are kept out")
def test_request_of_another_site_is_rejected(browser: Browser) -> None:
    for site in ("cross-site", "same-site"):
        assert browser.send("GET", f"{API}/session", headers={"Sec-Fetch-Site": site}).status == 403
    assert browser.send("GET", f"{API}/session", headers={"Sec-Fetch-Site": "same-origin"}).status == 200


@pytest.mark.parametrize("path", ["/", f"{API}/session", f"{API}/unknown", "/unknown", f"{API}/topics/no-such-topic"])
def test_every_response_has_the_security_headers(browser: Browser, path: str) -> None:
    headers = browser.send("GET", path).headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_body_beyond_the_limit_is_rejected(browser: Browser) -> None:
    big = {"records": [{"value": text("x" * (4 << 20))}]}
    assert browser.error("POST", "/topics/any/records", big) == (413, "body_too_large")


def test_invalid_requests_are_errors_with_a_reason(browser: Browser) -> None:
    assert browser.error("POST", "/topics", {"name": ""})[0] == 422
    assert browser.error("POST", "/topics", {"name": "a b"}) == (400, "invalid_topic_exception")
    assert browser.error("GET", "/topics?size=100000")[0] == 422
    assert browser.error("POST", "/topics/x/read", {"positions": {"0": -1}})[0] == 422
    assert browser.error("GET", "/configs/broker/x") == (404, "broker_not_available")
    assert browser.error("GET", f"/topics/{'x' * 300}")[0] == 404


@pytest.fixture(scope="module")
def secured() -> Iterator[Broker]:
    """A broker that authenticates and authorizes its clients."""
    login = f'username="{ADMIN}" password="{PASSWORD}" user_{ADMIN}="{PASSWORD}"'
    jaas = f"org.apache.kafka.common.security.plain.PlainLoginModule required {login};"
    with Broker(
        listen=None,
        settings={
            "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
            "inter.broker.listener.name": "SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": jaas,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{ADMIN};User:ANONYMOUS",
        },
    ) as broker:
        yield broker


@pytest.fixture(scope="module")
def login_url(secured: Broker) -> Iterator[str]:
    """A console with login: ann owns the topics that begin with her name, ben reads one of them."""
    security = ("security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN")
    credentials = (f"sasl.username={ADMIN}", f"sasl.password={PASSWORD}")
    options = [each for setting in (*security, *credentials) for each in ("-X", setting)]
    with serve(secured.bootstrap_servers, "--console-login", *options) as url:
        admin = Browser(url).log_in(ADMIN, PASSWORD)
        for user in USERS:
            admin.put(f"/users/{user}", {"password": f"{user}-password"})
        admin.post("/topics", {"name": "ann-orders", "partitions": 1})
        admin.post("/topics", {"name": "ann-private", "partitions": 1})
        prefix = {"kind": "topic", "name": "ann", "pattern": "prefixed", "principal": "User:ann", "operation": "all"}
        admin.post("/acls", prefix)
        admin.post("/acls", {"kind": "topic", "name": "ann-orders", "principal": "User:ben", "operation": "read"})
        yield url


def user(url: str, name: str) -> Browser:
    browser = Browser(url)
    reply = browser.send(
        "POST", f"{API}/session", {"user": name, "password": f"{name}-password", "mechanism": "SCRAM-SHA-512"}
    )
    assert reply.status == 200, reply.body
    cookie = reply.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    browser.cookie = cookie.partition(";")[0]
    return browser.open()


def test_console_with_login_shows_nothing_before_it(login_url: str) -> None:
    stranger = Browser(login_url).open()
    assert stranger.session["is_logged_in"] is False
    assert stranger.session["csrf_token"] is None
    for path in ("/overview", "/topics", "/groups", "/acls", "/users", "/topics/ann-orders/tail"):
        assert stranger.error("GET", path) == (401, "login_required")
    stranger.cookie = "moldau-console-1=" + "0" * 64
    assert stranger.error("GET", "/topics") == (401, "login_required")


def test_wrong_password_is_rejected(login_url: str) -> None:
    with pytest.raises(RequestFailed, match="sasl_authentication_failed"):
        Browser(login_url).log_in("ann", "wrong")


@pytest.mark.proves("A5", part="a user's ACLs")
def test_two_users_see_and_change_what_their_acls_allow(login_url: str) -> None:
    ann, ben = user(login_url, "ann"), user(login_url, "ben")
    ann.post("/topics/ann-orders/records", {"records": [{"value": text("for ben")}]})
    assert {each["name"] for each in ann.get("/topics")["topics"]} == {"ann-orders", "ann-private"}
    assert {each["name"] for each in ben.get("/topics")["topics"]} == {"ann-orders"}
    assert ben.read("ann-orders")["records"][0]["value"]["text"] == "for ben"
    assert ben.error("POST", "/topics/ann-private/read", {})[0] in (403, 404)
    record = {"records": [{"value": text("x")}]}
    assert ben.error("POST", "/topics/ann-orders/records", record) == (403, "topic_authorization_failed")
    assert ben.error("DELETE", "/topics/ann-orders", {"confirm": "ann-orders"})[0] == 403
    for path in ("/acls", "/users", "/quotas"):
        assert ben.error("GET", path) == (403, "cluster_authorization_failed")
    admin = Browser(login_url).log_in(ADMIN, PASSWORD)
    assert admin.get("/acls?search=ben")["total"] == 1
    ben_reads = {"kind": "topic", "name": "ann-orders", "principal": "User:ben", "operation": "read"}
    assert len(admin.post("/acls/delete", {**ben_reads, "operation": "write"})["deleted"]) == 0


def test_logout_ends_the_session(login_url: str) -> None:
    ann = user(login_url, "ann")
    ann.delete("/session", None)
    assert ann.error("GET", "/topics") == (401, "login_required")


def test_csrf_token_of_another_session_is_rejected(login_url: str) -> None:
    ann, ben = user(login_url, "ann"), user(login_url, "ben")
    ann.csrf_token = ben.csrf_token
    assert ann.error("POST", "/topics", {"name": "ann-x"}) == (403, "csrf_token")


@pytest.mark.proves("A5", part="a user's ACLs")
def test_failed_logins_are_limited(secured: Broker) -> None:
    settings = ("security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN", f"sasl.username={ADMIN}")
    options = [each for setting in (*settings, f"sasl.password={PASSWORD}") for each in ("-X", setting)]
    with serve(secured.bootstrap_servers, "--console-login", *options) as url:
        browser = Browser(url)
        wrong = {"user": "ann", "password": "wrong"}
        codes = [browser.error("POST", "/session", wrong)[0] for _ in range(11)]
    assert codes == [401] * 10 + [429]
