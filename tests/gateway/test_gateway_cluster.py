"""Administration through the gateway, who may use it, and its description."""

import base64
import json

import pytest
from confluent_kafka import Consumer, TopicPartition

from moldau.testing import Broker
from moldau_dev.console import serve
from moldau_dev.gateway import Gateway

ADMIN = "admin"
PASSWORD = "not-a-secret"


@pytest.mark.proves("A3", part="administration")
def test_topics_are_created_described_altered_and_deleted(gateway: Gateway) -> None:
    topic = {"name": "managed", "partitions": 2, "configs": {"retention.ms": "60000"}}
    assert gateway.post("/topics", topic).json["partitions"] == 2
    assert "managed" in {each["name"] for each in gateway.get("/topics?search=manage").json["topics"]}
    assert [each["end"] for each in gateway.get("/topics/managed").json["partition_list"]] == [0, 0]
    assert gateway.send("PATCH", "/topics/managed/configs", {"values": {"retention.ms": "70000"}}).status == 200
    configs = {each["name"]: each["value"] for each in gateway.get("/topics/managed/configs").json["configs"]}
    assert configs["retention.ms"] == "70000"
    assert gateway.send("DELETE", "/topics/managed").json == {"deleted": "managed"}
    assert gateway.error("GET", "/topics/managed") == (404, "unknown_topic_or_partition")


@pytest.mark.proves("A3", part="administration")
def test_group_has_its_lag_and_the_cluster_its_health(broker: Broker, gateway: Gateway, topic: str) -> None:
    records = [{"value": number, "partition": 0} for number in range(5)]
    gateway.post(f"/topics/{topic}/produce", {"records": records})
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": f"{topic}-readers"})
    consumer.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
    consumer.close()
    assert gateway.get(f"/groups/{topic}-readers").json["lag"] == 3
    (listed,) = gateway.get(f"/groups?search={topic}-readers").json["groups"]
    assert listed["lag"] == 3
    cluster = gateway.get("/cluster").json
    assert cluster["is_healthy"] is True
    number = cluster["brokers"][0]["id"]
    assert "log.retention.hours" in {each["name"] for each in gateway.get(f"/brokers/{number}/configs").json["configs"]}


@pytest.mark.proves("A3", part="an OpenAPI page")
def test_description_has_every_route_and_resolves(gateway: Gateway) -> None:
    description = gateway.get("/openapi.json").json
    assert set(description["paths"]) == {
        "/v1/topics",
        "/v1/topics/{topic}",
        "/v1/topics/{topic}/configs",
        "/v1/topics/{topic}/produce",
        "/v1/topics/{topic}/records",
        "/v1/groups",
        "/v1/groups/{group}",
        "/v1/cluster",
        "/v1/brokers/{broker}/configs",
    }
    references = {part.split('"')[0] for part in json.dumps(description).split('"#/components/schemas/')[1:]}
    assert references <= description["components"]["schemas"].keys()
    assert "ProducedRecord" in references
    page = gateway.get("/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert all(path.encode() in page.body for path in description["paths"])
    assert b"<script" not in page.body


@pytest.mark.proves("A3", part="other sites are kept out")
def test_requests_that_other_sites_can_send_are_rejected(gateway: Gateway, topic: str) -> None:
    path, body = f"/topics/{topic}/produce", {"records": [{"value": 1}]}
    for content_type in ("text/plain", "application/x-www-form-urlencoded"):
        assert gateway.post(path, body, Content_Type=content_type).status == 415
    assert gateway.post(path, body, Sec_Fetch_Site="cross-site").status == 403
    assert gateway.get(f"/topics/{topic}/records", Sec_Fetch_Site="cross-site").status == 403
    assert gateway.get("/topics", Host="evil.example").status == 421
    assert gateway.records(topic) == []


@pytest.mark.proves("A3", part="a user's ACLs")
def test_user_sees_and_changes_what_the_acls_allow() -> None:
    login = f'username="{ADMIN}" password="{PASSWORD}" user_{ADMIN}="{PASSWORD}" user_ann="ann-password"'
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "inter.broker.listener.name": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
            f"org.apache.kafka.common.security.plain.PlainLoginModule required {login};"
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{ADMIN};User:ANONYMOUS",
    }
    secured = ("security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN", f"sasl.username={ADMIN}")
    options = [each for setting in (*secured, f"sasl.password={PASSWORD}") for each in ("-X", setting)]
    with Broker(listen=None, settings=settings) as broker:
        with serve(broker.bootstrap_servers, "--console-login", *options) as url:
            _check_login(url)
        with serve(broker.bootstrap_servers, "--read-only", *options) as url:
            assert Gateway(url).get("/topics/orders/records").json["records"] == []
            assert Gateway(url).error("DELETE", "/topics/orders") == (403, "read_only")


def _check_login(url: str) -> None:
    stranger = Gateway(url)
    rejected = stranger.get("/topics")
    assert (rejected.status, rejected.json["error"]) == (401, "login_required")
    assert rejected.headers["www-authenticate"].startswith("Basic")
    assert as_user(url, "ann", "wrong").error("GET", "/topics") == (401, "sasl_authentication_failed")
    admin, ann = as_user(url, ADMIN, PASSWORD), as_user(url, "ann", "ann-password")
    assert admin.post("/topics", {"name": "orders", "partitions": 1}).status == 201
    assert "orders" in {each["name"] for each in admin.get("/topics").json["topics"]}
    assert ann.get("/topics").json["topics"] == []
    record = {"records": [{"value": 1}]}
    assert ann.error("POST", "/topics/orders/produce", record)[0] in (403, 404)
    assert ann.error("GET", "/topics/orders/records?format=sse")[0] in (403, 404)
    assert ann.error("DELETE", "/topics/orders")[0] in (403, 404)
    assert admin.get("/topics/orders/records").json["records"] == []


def as_user(url: str, user: str, password: str) -> Gateway:
    encoded = base64.b64encode(f"{user}:{password}".encode()).decode()
    return Gateway(url, {"Authorization": f"Basic {encoded}"})


@pytest.mark.proves("A3", part="back-pressure")
def test_requests_get_503_and_a_time_to_wait_while_no_broker_responds() -> None:
    with Broker() as broker, serve(broker.bootstrap_servers) as url:
        gateway = Gateway(url)
        assert gateway.post("/topics", {"name": "orders", "partitions": 1}).status == 201
        assert gateway.post("/topics/orders/produce", {"records": [{"value": 1}]}).status == 200
        broker.kill()
        body = {"records": [{"value": 2}]}
        reply = gateway.post("/topics/orders/produce?timeout_ms=300", body, Idempotency_Key="k")
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        assert "may be stored" in reply.json["message"]
        again = gateway.post("/topics/orders/produce?timeout_ms=300", body, Idempotency_Key="k")
        assert (again.status, again.json["error"]) == (409, "outcome_unknown")
