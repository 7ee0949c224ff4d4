"""Sequences of events that random runs seldom find, in the model cluster with its checks."""

from random import Random

import pytest
from replication_parts import AlterIsr
from replication_scene import Broker, Cluster

LONG_MS = 10_000.0


@pytest.fixture
def cluster() -> Cluster:
    """Broker 1 leads alone in the ISR; broker 2 is up and has fetched nothing."""
    cluster = Cluster(Random(0), brokers=2, replicas=2, min_isr=1)
    cluster.controller.fence(2)
    cluster.controller.unfence(2)
    learn_all(cluster)
    assert (cluster.state.leader, cluster.state.isr) == (1, (1,))
    return cluster


def learn_all(cluster: Cluster) -> None:
    for broker in cluster.brokers.values():
        while broker.seen < len(cluster.controller.history):
            cluster.learn(broker)
            cluster.check()


def catch_up(cluster: Cluster, broker: Broker) -> None:
    cluster.fetch(broker)
    cluster.serve(cluster.fetches.pop())
    cluster.take(cluster.responses.pop())
    cluster.check()


def proposal_of_the_second(cluster: Cluster) -> AlterIsr:
    catch_up(cluster, cluster.brokers[2])
    (proposal,) = cluster.proposals
    assert proposal.proposal.isr == (1, 2)
    cluster.proposals.clear()
    return proposal


def respond_to_all(cluster: Cluster) -> None:
    while cluster.decisions or cluster.proposals:
        if cluster.decisions:
            cluster.receive_decision(cluster.decisions.pop(0))
        else:
            cluster.decide(cluster.proposals.pop(0))
        cluster.check()


def produce(cluster: Cluster, count: int = 3) -> None:
    """Produce long after any follower was caught up, so that no follower is awaited out of courtesy."""
    cluster.now_ms += LONG_MS
    cluster.produce(cluster.brokers[1], count)
    cluster.check()


@pytest.mark.proves("H2")
def test_rejected_proposal_with_accepted_duplicate_loses_no_records(cluster: Cluster) -> None:
    proposal = proposal_of_the_second(cluster)
    cluster.controller.fence(2)
    cluster.decide(proposal)  # rejected: it is fenced
    learn_all(cluster)
    cluster.receive_decision(cluster.decisions.pop())
    produce(cluster)
    respond_to_all(cluster)
    produce(cluster)
    cluster.controller.unfence(2)
    cluster.decide(proposal)  # a delayed copy
    cluster.check()
    respond_to_all(cluster)
    produce(cluster)


@pytest.mark.proves("H2")
def test_accepted_proposal_with_lost_response_loses_no_records(cluster: Cluster) -> None:
    proposal = proposal_of_the_second(cluster)
    cluster.decide(proposal)
    cluster.decisions.clear()  # this response is lost
    cluster.decide(proposal)
    respond_to_all(cluster)
    produce(cluster)
    assert cluster.committed_end == 0
    learn_all(cluster)
    catch_up(cluster, cluster.brokers[2])
    catch_up(cluster, cluster.brokers[2])
    assert cluster.committed_end == 3


@pytest.mark.proves("H2")
def test_accepted_proposal_with_lost_response_counts(cluster: Cluster) -> None:
    proposal = proposal_of_the_second(cluster)
    cluster.decide(proposal)
    cluster.decisions[0] = cluster.decisions[0]._replace(response=None)
    cluster.receive_decision(cluster.decisions.pop())
    produce(cluster)
    assert len(cluster.proposals) == 1
    assert cluster.committed_end == 0


@pytest.mark.proves("H5")
def test_broker_after_a_power_loss_is_not_credited_with_lost_records() -> None:
    """Its old fetch arrives after its restart, and a new one before it has caught up."""
    cluster = Cluster(Random(3), brokers=3, replicas=3, min_isr=2)
    learn_all(cluster)
    first, second, third = cluster.brokers.values()
    produce(cluster, 10)
    for broker in (second, third, second, third):
        catch_up(cluster, broker)
    cluster.fetch(third)
    old = cluster.fetches.pop()
    while third.log.end_offset == old.offset:
        cluster.lose_power(third)
        cluster.start(third)
        cluster.controller.unfence(3)
    learn_all(cluster)
    cluster.serve(old)
    cluster.check()
    assert not cluster.proposals
    cluster.responses.clear()
    catch_up(cluster, third)
    cluster.serve(old)
    respond_to_all(cluster)
    assert first.leader is not None
    catch_up(cluster, second)
    for _ in range(8):
        catch_up(cluster, third)
        respond_to_all(cluster)
    assert set(cluster.state.isr) == {1, 2, 3}
