"""Settings: coerced from text, refused with a message that says what to write."""

import pytest
from pydantic import ValidationError

from fedlib import papers
from fedlib.core.nets import NETS
from fedlib.core.training import Training
from fedlib.data import DATASETS
from fedlib.partitions import NwayKshot
from fedlib.runs import runner
from fedlib.runs.spec import SettingError, Spec


def spec(**changes) -> Spec:
    base = {"dataset": "digits", "net": "digits_cnn", "method": "fedmps"}
    return Spec.of(**(base | changes))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"ruonds": 3}, "Spec: ruonds: unknown setting; did you mean 'rounds'?"),
        (
            {"hp": {"low_wieght": 1}},
            "low_wieght: unknown setting; did you mean 'low_weight'?",
        ),
        (
            {"training": {"batchsize": 4}},
            "training.batchsize: unknown setting; did you mean 'batch_size'?",
        ),
        (
            {"partition": {"shot": 4}},
            "partition.shot: unknown setting; did you mean 'shots'?",
        ),
        ({"zzz": 3}, "zzz: unknown setting; expected one of ['dataset', 'net', "),
        ({"training": {"zzz": 3}}, "expected one of ['optimiser', 'learning_rate', "),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value),
)
def test_an_unknown_setting_is_refused_with_a_suggestion(changes, told):
    with pytest.raises(SettingError) as caught:
        spec(**changes)
    assert told in str(caught.value)


WRONG = [
    # type
    ({"rounds": "abc"}, "rounds: got 'abc'", "integer"),
    ({"rounds": 5.5}, "rounds: got 5.5", "integer"),
    ({"rounds": "5.5"}, "rounds: got '5.5'", "integer"),
    ({"rounds": None}, "rounds: got None", "integer"),
    ({"dataset": 3}, "dataset: got 3", "string"),
    ({"method": 3}, "method: got 3", "string"),
    ({"training": 3}, "training: got 3", "dictionary or instance of Training"),
    ({"training": {"learning_rate": "fast"}}, "learning_rate: got 'fast'", "number"),
    ({"training": {"drop_last": "maybe"}}, "drop_last: got 'maybe'", "boolean"),
    ({"hp": {"soft_weight": "much"}}, "soft_weight: got 'much'", "number"),
    # range
    ({"rounds": 0}, "rounds: got 0", "greater than or equal to 1"),
    ({"clients": -1}, "clients: got -1", "greater than or equal to 1"),
    ({"participation": 0}, "participation: got 0", "greater than 0"),
    ({"participation": 1.5}, "participation: got 1.5", "less than or equal to 1"),
    ({"seed": -1}, "seed: got -1", "greater than or equal to 0"),
    ({"seed": 2**32}, f"seed: got {2**32}", f"less than {2**32}"),
    ({"eval_every": 0}, "eval_every: got 0", "greater than or equal to 1"),
    ({"all_rules_every": 0}, "all_rules_every: got 0", "than or equal to 1"),
    ({"partition": {"ways": 1}}, "partition.ways: got 1", "greater than or equal to 2"),
    ({"training": {"learning_rate": 0}}, "training.learning_rate: got 0", "than 0"),
    ({"training": {"learning_rate": float("nan")}}, "rate: got nan", "than 0"),
    ({"training": {"momentum": 1}}, "training.momentum: got 1", "less than 1"),
    ({"training": {"batch_size": 0}}, "training.batch_size: got 0", "equal to 1"),
    ({"training": {"optimiser": "sgdd"}}, "optimiser: got 'sgdd'", "'sgd' or 'adam'"),
    ({"hp": {"low_weight": -1}}, "low_weight: got -1", "greater than or equal to 0"),
    ({"hp": {"soft_temperature": 0}}, "soft_temperature: got 0", "greater than 0"),
    ({"hp": {"missing": "x"}}, "missing: got 'x'", "'own_embedding' or 'drop'"),
]


@pytest.mark.parametrize(
    ("changes", "got", "expected"), WRONG, ids=[str(case[0]) for case in WRONG]
)
def test_every_refusal_names_argument_value_and_expectation(changes, got, expected):
    with pytest.raises(SettingError) as caught:
        spec(**changes)
    assert got in str(caught.value)
    assert expected in str(caught.value)


@pytest.mark.parametrize("hp", [5, "x", [], 0, False])
def test_hp_of_a_wrong_type_is_named(hp):
    with pytest.raises(SettingError, match=r"hp: got .*dictionary"):
        spec(hp=hp)


def test_all_problems_are_told_at_once_and_a_missing_setting_is_named():
    with pytest.raises(SettingError) as caught:
        spec(rounds=0, clients="x", seeed=3)
    for told in ("rounds: got 0", "clients: got 'x'", "did you mean 'seed'?"):
        assert told in str(caught.value)
    with pytest.raises(SettingError, match="dataset: Field required"):
        Spec.of(net="digits_cnn", method="local")


def test_text_is_coerced_everywhere():
    found = spec(
        rounds="5",
        participation="0.5",
        training={"learning_rate": "1e-3", "drop_last": "false", "batch_size": "5"},
        hp={"low_weight": "1e-3", "server_epochs": "5", "common_init": "true"},
        partition={"ways": "4"},
    )
    assert found.rounds == 5
    assert isinstance(found.rounds, int)
    assert found.participation == 0.5
    assert found.training.learning_rate == 1e-3
    assert found.training.drop_last is False
    assert found.training.batch_size == 5
    assert found.partition.ways == 4
    assert found.hp["low_weight"] == 1e-3
    assert found.hp["server_epochs"] == 5
    assert found.hp["common_init"] is True
    assert spec(rounds=5.0).rounds == 5


def test_hp_are_completed_so_that_equal_specs_are_equal():
    assert spec().hp["contrast_temperature"] == 0.5
    assert spec(hp={"soft_weight": 1}) == spec() == spec(hp=None)
    assert spec(hp={"soft_weight": 2}) != spec()
    assert Spec.model_validate_json(spec().model_dump_json()) == spec()


def test_an_unknown_method_is_refused_with_a_suggestion():
    told = r"method: got 'fedmsp', expected one of \[.*'fedavg'.*did you mean 'fedmps'?"
    with pytest.raises(SettingError, match=told):
        spec(method="fedmsp")
    with pytest.raises(ValueError, match=told):
        papers.fedmps("digits", "fedmsp")


def test_an_unknown_dataset_or_net_names_the_known_ones():
    with pytest.raises(
        ValueError, match="dataset: got 'cifar', expected one"
    ) as caught:
        papers.fedmps("cifar", "local")
    assert all(name in str(caught.value) for name in papers.PAPERS["fedmps"])
    with pytest.raises(
        ValueError, match="dataset: got 'cifar', expected one"
    ) as caught:
        runner.run(spec(dataset="cifar"))
    assert all(name in str(caught.value) for name in DATASETS)
    with pytest.raises(ValueError, match="net: got 'resnet', expected one") as caught:
        runner.run(spec(net="resnet"))
    assert all(name in str(caught.value) for name in NETS)
    with pytest.raises(ValueError, match=r"net lenet: images are \(1, 8, 8\), expect"):
        runner.run(spec(net="lenet"))


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [(None, "rounds", 5), ("training", "momentum", 0.1), ("partition", "ways", 2)],
)
def test_a_spec_is_frozen(part, name, value):
    target = getattr(spec(), part) if part else spec()
    with pytest.raises(ValidationError, match="frozen"):
        setattr(target, name, value)


def test_the_papers_presets_are_applied():
    cifar = papers.fedmps("cifar10", "fedmps")
    assert (cifar.hp["low_weight"], cifar.hp["soft_weight"]) == (0.2, 5.0)
    assert (cifar.hp["contrast_weight"], cifar.hp["high_weight"]) == (1.0, 1.0)
    assert (cifar.net, cifar.rounds, cifar.clients) == ("lenet", 500, 20)
    assert cifar.partition == NwayKshot(
        ways=3, shots=100, test_shots=15, spread=1, block=110
    )
    assert cifar.training == Training(
        optimiser="sgd",
        learning_rate=0.01,
        momentum=0.5,
        weight_decay=0.0,
        batch_size=8,
        local_epochs=1,
        drop_last=True,
    )
    fashion = papers.fedmps("fashion", "fedmps")
    assert (fashion.hp["low_weight"], fashion.hp["soft_weight"]) == (1.0, 1.0)
    assert (fashion.net, fashion.rounds) == ("fashion_cnn", 800)
    assert fashion.partition.spread == 2
    for dataset in papers.PAPERS["fedmps"]:
        fedavg = papers.fedmps(dataset, "fedavg").hp
        assert (fedavg["weighting"], fedavg["common_init"]) == ("uniform", False)
        assert papers.fedmps(dataset, "fedproto").hp["weighting"] == "uniform"


def test_the_papers_presets_give_way():
    found = papers.fedmps(
        "cifar10",
        "fedmps",
        hp={"low_weight": 0.7},
        rounds=3,
        ways=5,
        training={"learning_rate": 0.2},
        seed=9,
    )
    assert (found.hp["low_weight"], found.hp["soft_weight"]) == (0.7, 5.0)
    assert (found.rounds, found.partition.ways, found.seed) == (3, 5, 9)
    assert found.partition.shots == 100
    assert found.training.learning_rate == 0.2
    own = papers.fedmps("cifar10", "fedavg", hp={"common_init": True})
    assert (own.hp["weighting"], own.hp["common_init"]) == ("uniform", True)
    with pytest.raises(SettingError, match="did you mean 'rounds'"):
        papers.fedmps("cifar10", "fedmps", ruonds=3)
    with pytest.raises(SettingError, match="did you mean 'common_init'"):
        papers.fedmps("cifar10", "fedavg", hp={"commoninit": True})
