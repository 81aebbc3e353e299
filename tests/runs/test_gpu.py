"""Runs on a real GPU against the CPU; ``make gpu`` fails where there is none."""

import json

import pytest
import torch
from safetensors import safe_open

from fedlib import registry
from fedlib.runs import address, runner
from fedlib.runs.results import Result
from fedlib.runs.spec import Spec
from tests.runs.test_runner import assert_same_log, cut_off, small

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]
UNORDERED = "ignore:.*does not have a deterministic implementation"


@pytest.fixture
def computed(monkeypatch, tmp_path):
    """Return a function that runs a spec on a device, in a cache by name."""

    def compute(spec: Spec, device: str, cache: str) -> Result:
        monkeypatch.setenv("FEDLIB_DEVICE", device)
        monkeypatch.setenv("FEDLIB_CACHE", str(tmp_path / cache))
        return runner.run(spec)

    return compute


def assert_close(one: Result, other: Result) -> None:
    """Compare logs: losses within a hundredth, one right answer in 50 more or fewer."""
    left, right = one.log.flat(), other.log.flat()
    assert left.keys() == right.keys()
    samples = int(one.log.samples[0].sum())
    for name, value in left.items():
        given = right[name]
        if name.startswith("accuracy/"):
            apart = (value.sum(-1) - given.sum(-1)).abs().max()
            assert apart <= max(1, samples // 50), name
        elif value.is_floating_point():
            torch.testing.assert_close(
                given, value, rtol=1e-2, atol=1e-3, equal_nan=True, msg=name
            )
        else:  # cohorts, bytes, numbers of samples
            assert torch.equal(given, value), name


@pytest.mark.filterwarnings(UNORDERED)
@pytest.mark.parametrize("method", registry.METHODS)
def test_a_gpu_agrees_with_the_cpu(computed, method):
    spec = small(method, rounds=2)
    assert_close(computed(spec, "cpu", "cpu"), computed(spec, "cuda", "gpu"))
    record = json.loads((address.folder(spec) / "spec.json").read_text())
    assert record["device"].startswith("cuda")


@pytest.mark.parametrize("method", registry.METHODS)
def test_a_gpu_gives_the_same_bits_twice(computed, method):
    """A warning of torch, that an operation has no fixed order, fails this too."""
    spec = small(method, rounds=2)
    assert_same_log(computed(spec, "cuda", "one"), computed(spec, "cuda", "two"))


def test_a_checkpoint_of_a_gpu_is_resumed_on_the_cpu(computed, monkeypatch):
    spec = small("fedproto")
    expected = computed(spec, "cpu", "cpu")
    monkeypatch.setenv("FEDLIB_CACHE", str(address.cache_dir() / "other"))
    monkeypatch.setenv("FEDLIB_DEVICE", "cuda")
    home = cut_off(spec, monkeypatch, before=3)
    with safe_open(home / "checkpoint.safetensors", "pt") as file:
        assert file.metadata() == {"round": "2"}
    monkeypatch.setenv("FEDLIB_DEVICE", "cpu")
    assert_close(expected, runner.run(spec))
