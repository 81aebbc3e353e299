"""What a round costs by its shapes, against counts by hand."""

import pytest

from fedlib import papers
from fedlib.runs import shapes


def test_operations_of_a_small_net_are_counted_by_hand():
    """Two for each weight and place: 8 and 16 filters of 3 x 3, then two layers."""
    layers = 8 * 9 * 8 * 8 + 16 * 8 * 9 * 4 * 4 + 64 * 32 + 32 * 10
    assert shapes.operations("digits_linear", (1, 8, 8), 10) == 2 * layers


def test_a_larger_image_and_a_larger_net_cost_more():
    small = shapes.operations("fedpa_cnn", (1, 28, 28), 10)
    assert shapes.operations("fedpa_cnn", (3, 28, 28), 10) > small
    deep = shapes.operations("resnet18_cifar", (3, 32, 32), 10)
    assert deep == pytest.approx(2 * 0.5567e9, rel=0.02)  # He et al. style, 3x3 stem


def test_seconds_are_images_times_passes_over_the_rate():
    spec = papers.fedmps("fashion", "local")
    each = spec.partition.shots * spec.partition.ways * spec.training.local_epochs
    one = shapes.operations(spec.net, (1, 28, 28), 10)
    wanted = spec.clients * each * 3 * one / shapes.RATE
    assert shapes.seconds_per_round(spec) == pytest.approx(wanted)
    half = spec.model_copy(update={"participation": 0.5})
    assert shapes.seconds_per_round(half) == pytest.approx(wanted / 2)


def test_a_batch_is_no_larger_than_a_client():
    spec = papers.fedpa("fashion", "fedavg")
    steps = spec.training.local_steps
    assert steps is not None
    one = shapes.operations(spec.net, (1, 28, 28), 10)
    images = spec.participation * spec.clients * steps * spec.training.batch_size
    wanted = images * 3 * one / shapes.RATE
    assert shapes.seconds_per_round(spec) == pytest.approx(wanted)
    many = spec.model_copy(update={"clients": 60_000, "participation": 1 / 60_000})
    wanted = steps * 1 * 3 * one / shapes.RATE
    assert shapes.seconds_per_round(many) == pytest.approx(wanted)


def test_a_long_tail_has_fewer_images():
    whole = papers.fedhpro("cifar10", "fedavg")
    tail = papers.fedhpro("cifar10", "fedavg", imbalance=10)
    ratio = sum(10 ** (-c / 9) for c in range(10)) / 10
    seconds = [shapes.seconds_per_round(each) for each in (whole, tail)]
    assert None not in seconds
    assert seconds[1] / seconds[0] == pytest.approx(ratio)


def test_nothing_is_known_where_the_number_of_images_is_not():
    assert shapes.seconds_per_round(papers.fedhpro("digits_domains", "fedavg")) is None
