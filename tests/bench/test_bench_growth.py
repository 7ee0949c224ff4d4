"""Curves of cost against size, and their plot."""

from xml.etree import ElementTree

import pytest

from moldau_dev.bench.growth.curve import Curve
from moldau_dev.bench.growth.plot import draw
from moldau_dev.bench.growth.suite import Sizes

FLAT = Curve("empty fetch", "partitions", "us", {10: 20.0, 1000: 30.0}, limit=100)


@pytest.mark.parametrize(("costs", "is_met"), [({10: 20.0, 1000: 100.0}, True), ({10: 101.0, 1000: 20.0}, False)])
def test_limit_holds_at_every_size(costs: dict[int, float], is_met: bool) -> None:
    assert Curve("empty fetch", "partitions", "us", costs, limit=100).is_met is is_met


def test_growth_compares_the_largest_size_with_the_smallest() -> None:
    assert FLAT.growth == 1.5


def test_plot_shows_every_cost_and_size() -> None:
    drawn = ElementTree.fromstring(draw([FLAT, Curve("a < b", "topics", "ms", {1: 0.0}), FLAT, FLAT]))
    texts = [each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[:6] == ["empty fetch, us", "20", "10", "30", "1,000", "partitions"]
    assert "a < b, ms" in texts


def test_sizes_end_at_the_largest_wanted() -> None:
    sizes = Sizes().up_to(500, 1000)
    assert list(sizes.topics) == [10, 100, 500]
    assert list(sizes.idle_consumers) == [100, 1000]
