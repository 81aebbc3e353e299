"""A method, a net, a scheme and images from outside of the package."""

import re
import sys
from itertools import islice

import pytest
import torch
from torch import nn

from fedlib import data, federation, papers, registry, run
from fedlib.core import nets
from fedlib.core.layers import Linear
from fedlib.core.net import Shape
from fedlib.core.nets import Parts
from fedlib.data import DataError
from fedlib.draw import looks
from fedlib.partitions import DRAWS, SCHEMES, common
from fedlib.runs import address, own
from fedlib.runs.many import run_many
from fedlib.runs.spec import SettingError, Spec
from fedlib.support.paths import NOTEBOOKS

TABLES = (registry.METHODS, nets.NETS, SCHEMES, DRAWS, data.DATASETS)
TABLES += (papers.PAPERS["fedmps"], papers.OURS, papers._added)


@pytest.fixture(autouse=True)
def mine(monkeypatch):
    """Import the module of the walkthrough; what it adds is taken away again."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("FEDLIB_OWN", "")
    monkeypatch.delitem(sys.modules, "my_shapes", raising=False)
    field = Spec.model_fields["partition"]
    before, schemes = [table.copy() for table in TABLES], field.annotation
    yield own.use("my_shapes", NOTEBOOKS / "learn")
    for table, kept in zip(TABLES, before, strict=True):
        table.clear()
        table.update(kept)
    field.annotation = schemes
    Spec.model_rebuild(force=True)


# FedAvg's own; FedMPS's tables run it with others
ARTICLE = {"common_init": True, "weighting": "samples"}


def small(method: str = "fedavgm", **changes) -> Spec:
    changes = {"rounds": 2, "partition": {"scheme": "stairs"}} | changes
    changes["hp"] = ARTICLE | changes.get("hp", {})
    return papers.fedmps("my_shapes", method, **changes)


def test_all_that_is_added_is_asked_for_by_name_and_travels_as_text():
    spec = small(seed=3)
    assert (spec.net, spec.partition.scheme, spec.clients) == ("small_cnn", "stairs", 4)
    assert spec.partition.step == 1.0
    assert Spec.model_validate_json(spec.model_dump_json()) == spec
    with pytest.raises(SettingError, match="partition.stpe.*did you mean 'step'"):
        small(partition={"scheme": "stairs", "stpe": 2})
    with pytest.raises(SettingError, match="step: got -1"):
        small(partition={"scheme": "stairs", "step": -1})
    own.use("my_shapes")  # a cell that is run again
    assert Spec.model_validate_json(spec.model_dump_json()) == spec
    assert small(partition={"scheme": "lda"}).partition.scheme == "lda"


def test_every_client_has_its_share_of_images():
    fed = federation(small(partition={"scheme": "stairs", "step": 2.0}))
    assert [len(i) for i in fed.partition.train] == [22, 68, 112, 158]  # 360 by 1357
    assert len(torch.cat(fed.partition.train).unique()) == 360


@pytest.mark.parametrize(("momentum", "same"), [(0.0, True), (0.5, False)])
def test_without_momentum_the_method_is_fedavg(momentum, same):
    def after(name: str, **hp) -> torch.Tensor:
        third = next(islice(federation(small(name, hp=hp)).rounds(), 2, None))
        return torch.cat([w.flatten() for w in third.server.model.params.values()])

    assert torch.equal(after("fedavg"), after("fedavgm", momentum=momentum)) == same


def test_the_server_goes_on_as_it_moved():
    one, two = islice(federation(small(hp={"momentum": 0.5})).rounds(), 2)
    count = two.up.samples.double()
    for name, w in two.server.model.params.items():
        mean = torch.tensordot(count, two.up.model.params[name].double(), 1)
        ahead = mean / count.sum() + 0.5 * one.server.velocity[name]
        torch.testing.assert_close(w.double(), ahead, atol=1e-5, rtol=1e-5)
        assert torch.equal(two.server.velocity[name], w - one.server.model.params[name])


def test_own_code_is_in_the_keys_of_its_runs_and_in_no_other():
    def parts(spec: Spec) -> set[str]:
        found = address.code_of(spec).parts
        return {name.partition(".")[2] for name in found if "my_shapes" in name}

    assert parts(small()) >= {"METHOD", "merge", "init", "HP", "small_cnn"}
    assert "small_cnn" in parts(small("fedavg"))
    assert not parts(small("fedavg", net="fedpa_cnn"))
    assert not parts(papers.fedmps("digits", "fedavg", rounds=2))


@pytest.mark.slow
def test_other_processes_know_what_is_added():
    found = run_many([small(seed=s, rounds=1) for s in (1, 2)], jobs=2)
    assert [r.spec.seed for r in found] == [1, 2]


def test_it_is_drawn_with_a_look_of_its_own():
    drawn = {name: looks.style(name) for name in registry.METHODS}
    assert drawn["fedavgm"].label == "FedAvgM"
    marks = {(s.marker, s.line) for s in drawn.values()}
    assert len(marks) == len(registry.METHODS)
    mine = drawn.pop("fedavgm")
    assert mine.colour not in {style.colour for style in drawn.values()}


def test_what_is_taken_or_cannot_be_followed_is_refused(mine):
    with pytest.raises(ValueError, match="name: got 'fedavg', which is taken"):
        own.add_method("fedavg", "Mine", "my_shapes")
    with pytest.raises(ValueError, match="name: got 'Fed Mine', expected a-z"):
        own.add_method("Fed Mine", "Mine", "my_shapes")
    with pytest.raises(ValueError, match="name: got 'lenet', which is taken"):
        own.add_net("lenet", mine.small_cnn)
    with pytest.raises(ValueError, match=r"build: got .*<lambda>"):
        own.add_net("new", lambda shape, classes: None)
    with pytest.raises(ValueError, match="scheme: got 'lda', which is taken"):
        own.add_scheme(type("Mine", (SCHEMES["lda"],), {}), print)
    with pytest.raises(ValueError, match="scheme: got '', expected"):
        own.add_scheme(common.SchemeSettings, print)
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        own.use("no_such_module")
    with pytest.raises(DataError, match="nowhere, which does not exist"):
        data.add_folder("new", "nowhere")
    with pytest.raises(ValueError, match="like: got 'mnist', expected one of"):
        papers.add("fedmps", "my_shapes", like="mnist")
    with pytest.raises(ValueError, match="dataset: got 'fashion', which fedmps has"):
        papers.add("fedmps", "fashion", like="digits")
    with pytest.raises(ValueError, match="paper: got 'fedx'"):
        papers.add("fedx", "my_shapes", like="digits")


def narrow(shape: Shape, classes: int) -> Parts:
    """Return a net whose second linear layer takes fewer numbers than it gets."""
    low, high, head = nets._fedpa_cnn(shape, classes)
    return low, nn.Sequential(high, nn.ReLU(), Linear(30, 32)), head


def one_more(shape: Shape, classes: int) -> Parts:
    return nets._fedpa_cnn(shape, classes + 1)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (
            narrow,
            "net mine, images of (1, 12, 12): high.2, Linear(in_features=30, "
            "out_features=32, bias=True), got [1, 32]: ",
        ),
        (one_more, "net mine, images of (1, 12, 12): got logits [1, 5], expected [1,"),
    ],
)
def test_a_net_that_does_not_fit_is_told_in_words_before_training(build, words):
    """Torch's came, of a product of matrices of all clients."""
    own.add_net("mine", build)
    with pytest.raises(ValueError, match=re.escape(words)):
        run(small("fedavg", net="mine"))
    layers = federation(small("fedavg", net="mine")).ctx.net.module.modules()
    assert not any(layer._forward_pre_hooks for layer in layers)


def test_a_module_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("FEDLIB_OWN", "nothere")
    with pytest.raises(SettingError, match="FEDLIB_OWN: got 'nothere'"):
        own.use_named()
