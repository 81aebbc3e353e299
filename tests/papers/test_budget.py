"""Which run is one of a setting, and what of the setting's budget it cuts."""

from types import SimpleNamespace
from typing import Any

import pytest

from fedlib import papers
from fedlib.papers.budget import cut
from fedlib.runs.spec import Spec


def told(paper: str, *specs: Spec) -> list[str]:
    return [
        n.text for n in papers.notes([SimpleNamespace(spec=s) for s in specs], paper)
    ]


FULL = papers.fedmps("cifar10", "fedmps")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, []),
        ({"rounds": 501}, []),  # longer cuts nothing
        ({"seed": 7, "partition_seed": 3, "eval_every": 5}, []),
        ({"all_rules_every": 1}, []),  # the paper's own rule is read either way
        ({"rounds": 100}, ["100 of 500 rounds"]),
        ({"hp": {"server_epochs": 2}}, ["2 of 6 server epochs"]),
        ({"net": "resnet18"}, ["net resnet18 in place of lenet"]),
        ({"hp": {"server_epochs": 7}}, None),
        ({"training": {"local_epochs": 2}}, None),
        ({"training": {"local_steps": 2}}, None),  # steps are not epochs
        ({"ways": 4}, None),
        ({"partition": {"spread": 2}}, None),
        ({"hp": {"variant": "reference"}}, None),
        ({"hp": {"soft_weight": 1.0}}, None),
        ({"clients": 10}, None),
        ({"test": "full"}, None),
        ({"embedding": "raw"}, None),
        ({"training": {"batch_size": 16}}, None),
    ],
)
def test_a_run_is_of_a_setting_or_cuts_it_or_is_another(changes: dict[str, Any], words):
    assert cut(papers.fedmps("cifar10", "fedmps", **changes), FULL) == words


def test_another_method_or_data_set_is_another_setting():
    assert cut(papers.fedmps("cifar10", "fedavg"), FULL) is None
    assert cut(papers.fedmps("fashion", "fedmps"), FULL) is None


def test_local_epochs_do_not_count_where_steps_do():
    full = papers.fedpa("fashion", "fedavg")
    fewer = full.training.model_copy(update={"local_epochs": 1})
    assert cut(full.model_copy(update={"training": fewer}), full) == []
    steps = papers.fedpa("fashion", "fedavg", training={"local_steps": 5})
    assert cut(steps, full) == ["5 of 20 local steps"]


def test_a_released_configuration_is_measured_by_its_own_length():
    # run_fedpg.py: 200 rounds of one epoch, where the paper has 100 of five
    for method in ("fedpg", "fedavg"):
        for named in ("script", "notebook"):
            assert (
                told("fedpg", papers.fedpg("cifar10", method, configuration=named))
                == []
            )
        cuts = papers.fedpg("cifar10", method, configuration="script", rounds=100)
        assert told("fedpg", cuts) == ["reduced budget: cifar10, 100 of 200 rounds"]
    paper = papers.fedpg("cifar10", "fedavg", training={"local_epochs": 1}, rounds=200)
    assert told("fedpg", paper) == ["reduced budget: cifar10, 1 of 5 local epochs"]
    # trains as the notebook's clients, and has more rounds of fewer epochs than they
    assert told("fedpg", papers.fedpg("cifar100", "fedavg")) == []


def test_every_run_is_noted_and_each_cut_once():
    runs = [papers.fedpa("fashion", "fedpa", rounds=n) for n in (3, 200, 7, 3)]
    assert told("fedpa", *runs) == [
        "reduced budget: fashion, 3 of 200 rounds",
        "reduced budget: fashion, 7 of 200 rounds",
    ]


def test_what_a_server_trains_less_is_noted():
    spec = papers.fedpg("cifar10", "fedpg", hp={"generator_steps": 100})
    words = "reduced budget: cifar10, 100 of 300 generator steps"
    assert told("fedpg", spec) == [words]


@pytest.mark.parametrize("paper", papers.PAPERS)
def test_a_papers_own_runs_cut_nothing(paper):
    for dataset in set(papers.PAPERS[paper]) - papers.OURS:
        for method in (paper, "fedavg", "local"):
            assert told(paper, papers.BUILDERS[paper](dataset, method)) == []
