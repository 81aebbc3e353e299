"""What a run reached, as an artefact's provenance keeps it."""

import json
from typing import Any

import pytest
import torch

from fedlib import papers
from fedlib.core.log import Log
from fedlib.runs.results import Result, measured
from fedlib.runs.spec import Spec


def result(spec: Spec, **log: Any) -> Result:
    return Result(spec, "", Log.of(log))


def test_it_is_the_accuracy_of_the_papers_rule_on_what_the_spec_tests():
    # two clients of 4 and 16 samples; pooled: 4, 10 and 9 of 20 right
    spec = papers.fedpa("fashion", "fedpa", hp={"variant": "reference"}, clients=2)
    right = torch.tensor([[2, 2], [0, 10], [4, 5]])
    found = measured(
        result(
            spec,
            evaluated=torch.tensor([10, 20, 30]),
            samples=torch.tensor([[4, 16]]),
            **{
                "accuracy/received/head_all": right,
                "accuracy/global/head_all": 0 * right,
            },
        )
    )
    assert found == {
        **{"model": "received", "rule": "head_all", "data": "pooled"},
        **{"last": 45.0, "best": 50.0, "best_round": 20},
        "mean_last5": pytest.approx(100 * 23 / 60),
    }


def test_domains_are_those_of_the_best_average_and_json_can_hold_them():
    # averages 30 and 40 %: the second round, though USPS is better in the first
    spec = papers.fedhpro("digits_domains", "fedavg")
    right = torch.tensor([[10, 90, 10, 10], [20, 20, 80, 40]])
    found = measured(
        result(
            spec,
            evaluated=torch.tensor([5, 10]),
            samples=torch.ones(1, 20),
            full_samples=torch.full((1, 4), 100),
            **{
                "accuracy/global/head_all": torch.zeros(2, 20),
                "full/global/head_all": right,
            },
        )
    )
    assert found is not None
    assert (found["data"], found["best"], found["best_round"]) == ("groups", 40.0, 10)
    domains = {"MNIST": 20.0, "USPS": 20.0, "SVHN": 80.0, "SYN": 40.0}
    assert json.loads(json.dumps(found))["groups"] == domains


def test_a_rule_that_was_not_recorded_has_no_number():
    spec = papers.fedmps("digits", "fedmps")
    log = {"evaluated": torch.tensor([1]), "samples": torch.ones(1, 10)}
    log["accuracy/personal/head_all"] = torch.ones(1, 10)
    assert measured(result(spec, **log)) is None
