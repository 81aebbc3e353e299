"""Every method in every variant, and every net: the same bits wherever they compute."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedlib import registry
from fedlib.core import nets
from fedlib.core.method import rounds
from fedlib.core.rng import generator
from fedlib.core.shards import Shards
from fedlib.core.tree import flatten
from fedlib.runs import address, many, on_disk, runner
from fedlib.runs.spec import Spec
from fedlib.support.paths import ROOT
from tests.conftest import toy_context
from tests.methods.test_contracts import CASES, Case, every_case
from tests.runs.test_chaos import over
from tests.runs.test_runner import cut_off, small, spawn, watch, zygote

__all__ = ["zygote"]  # a fixture

RUN = "runs.run(Spec.model_validate_json(text))"
EVERY = [str(case) for case in CASES]


def short(case: Case) -> Spec:
    """Return three rounds of three of four clients, on the digits."""
    few = {"clients": 4, "participation": 0.75, "rounds": 3}
    few["partition"] = {"shots": 8, "test_shots": 4}
    return small(case.name, hp=case.hp, **few)


def raw(tensors: dict[str, Tensor]) -> dict[str, tuple]:
    """Return types, shapes and bytes."""
    return {n: (v.dtype, v.shape, v.numpy().tobytes()) for n, v in tensors.items()}


def bits(spec: Spec) -> dict[str, dict[str, tuple]]:
    """Return all bits that a finished run has in the cache: its log and its models."""
    home = address.folder(spec)
    names = ("result.safetensors", "final.safetensors")
    return {name: raw(on_disk.read(home / name)[0]) for name in names}


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """Return a function that computes a run once, in this process."""
    known, place = {}, tmp_path_factory.mktemp("first")

    def compute(spec: Spec):
        text = spec.model_dump_json()
        if text not in known:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("FEDLIB_CACHE", str(place))
                runner.run(spec)
                known[text] = bits(spec)
        return known[text]

    return compute


def test_every_method_is_there():
    assert {case.name for case in CASES} == set(registry.METHODS)
    assert len(set(EVERY)) == len(CASES)


@every_case
def test_a_run_has_the_same_bits_twice_and_after_a_resume(case, first, monkeypatch):
    spec = short(case)
    wanted = first(spec)
    runner.run(spec)
    assert bits(spec) == wanted
    shutil.rmtree(address.folder(spec))
    cut_off(spec, monkeypatch, before=3)
    played = watch(monkeypatch, case.name)
    runner.run(spec)
    assert played == [3]
    assert bits(spec) == wanted


@every_case
def test_a_run_has_the_same_bits_in_a_fresh_process(case, first, own_cache, zygote):
    """Its names hash otherwise, and nothing was drawn or computed in it."""
    spec = short(case)
    assert over(spawn(zygote, own_cache, RUN, text=spec.model_dump_json()))
    assert bits(spec) == first(spec)


@pytest.mark.slow  # two processes import the library
def test_runs_have_the_same_bits_under_two_jobs(first, monkeypatch):
    """In whatever process a run lands, and whatever that has computed before."""
    specs = [short(case) for case in CASES]
    many.POOL.stop()
    with monkeypatch.context() as patch:
        patch.setattr(runner, "_compute", lambda *_: pytest.fail("computed here"))
        many.run_many(specs, jobs=2)
    many.POOL.stop()
    for case, spec in zip(CASES, specs, strict=True):
        assert bits(spec) == first(spec), case


# nets

COLOURS = {"lenet", "fedpa_cnn_celeba", "convnet5"}  # and all residual nets


def trained(name: str) -> str:
    """Return the hash of a net that two clients have trained for a round of FedAvg."""
    side = nets.NETS[name].shape[1] or 32
    channels = 3 if name in COLOURS or name.startswith("resnet") else 1
    draw = generator(0, "images")
    x, y = torch.randn(9, channels, side, side, generator=draw), torch.arange(9) % 4
    shards = Shards(x, y, [torch.arange(4), torch.arange(4, 9)], [0, 1])
    method, net = registry.method("fedavg"), nets.build(name, x.shape[1:], 4)
    ctx = replace(toy_context(method, 2), net=net)
    server = next(rounds(method, ctx, shards)).server
    content = repr(sorted(raw(flatten(server)).items()))
    return hashlib.sha256(content.encode()).hexdigest()


ELSEWHERE = """
import json, sys
import torch
from tests.runs.test_determinism import trained

torch.set_num_threads(1)
print(json.dumps({name: trained(name) for name in sys.argv[1:]}))
"""


@pytest.fixture(scope="module")
def elsewhere() -> dict[str, str]:
    """Return what a fresh process makes of each net."""
    found = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, *nets.NETS],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "1"},
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(found.stdout)


@pytest.mark.slow  # a process that imports the library and trains all of them
@pytest.mark.parametrize("name", nets.NETS)
def test_a_net_has_the_same_bits_twice_and_in_a_fresh_process(name, elsewhere):
    once = trained(name)
    assert trained(name) == once
    assert elsewhere[name] == once
