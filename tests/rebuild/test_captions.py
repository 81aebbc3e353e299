"""What stands below a picture, of what the JSON beside it holds."""

import pytest

from fedlib.rebuild import captions

CUT = {"kind": "reduced", "text": "reduced budget: cifar10, 100 of 500 rounds"}
NET = "reduced budget: cifar10, net fedpa_cnn in place of resnet18"


def run(method: str, accuracy: float, dataset="cifar10", seed=0, rounds=100):
    reached = {"last": accuracy, "best": accuracy, "mean_last5": accuracy}
    return {
        "dataset": dataset,
        "method": method,
        "seed": seed,
        "rounds": rounds,
        "accuracy": reached,
    }


def about(runs, notes=(), titles=("CIFAR-10",), names=("cifar10",)):
    data = [{"name": n, "title": t} for n, t in zip(names, titles, strict=True)]
    seeds = sorted({each["seed"] for each in runs})
    return {"data": data, "notes": [*notes], "runs": [*runs], "seeds": seeds}


def test_a_cut_budget_and_a_whole_one_are_told():
    runs = [
        run("fedmps", 0.5),
        run("local", 0.4),
        run("local", 0.3, "mnist", rounds=80),
    ]
    told = captions.budget(
        about(runs, [CUT], ("CIFAR-10", "MNIST"), ("cifar10", "mnist"))
    )
    assert told == "CIFAR-10: 100 of 500 rounds; MNIST: 80 rounds; one seed."


def test_code_names_of_nets_are_not():
    told = captions.budget(
        about([run("moon", 0.5)], [{"kind": "reduced", "text": NET}])
    )
    assert "net FedPA's CNN in place of ResNet-18" in told
    assert "100 rounds" in told


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (["round", "value"], "mean of 3 seeds"),
        (["round", "value", "sd"], "mean and one sd of 3 seeds"),
        (["y", "x", "channel"], "images of seed 0 alone, scores of 3 seeds"),
        (["kind", "percent"], "values of 3 seeds together"),
    ],
)
def test_what_is_shown_of_several_seeds_is_said(columns, said):
    runs = [run("moon", 0.1 * seed, seed=seed) for seed in range(3)]
    assert captions.budget(about(runs), columns).endswith(f"; {said}.")
    assert captions.budget(about(runs[:1]), columns).endswith("; one seed.")


def test_a_note_below_a_picture_is_a_sentence():
    note = {"kind": "reduced", "text": "reduced budget: hollow leads are of 5 rounds"}
    told = captions.budget(about([], [note], (), ()))
    assert told == "Hollow leads are of 5 rounds."


def test_data_of_no_paper_are_named():
    note = {"kind": "not_paper_data", "text": "digits is not a data set of the paper"}
    told = captions.budget(
        about([run("moon", 0.5, "digits", rounds=5)], [note], ("Digits",), ("digits",))
    )
    assert told == "Digits: 5 rounds; one seed; Digits is no data of the paper."


@pytest.mark.parametrize(("third", "said"), [(0.3, False), (0.1, True)])
def test_methods_that_have_not_trained_are_named(third, said):
    """Who reaches the same number as another in every run still predicts one class."""
    runs = [run("fedavg", 0.1), run("fedprox", 0.1), run("fedmps", 0.6)]
    runs += [run("fedavg", 0.1, seed=1), run("fedprox", third, seed=1)]
    told = captions.budget(about(runs))
    assert (
        "not trained enough to differ in any digit: FedAvg, FedProx." in told
    ) == said
    assert captions.untrained([{**each, "accuracy": None} for each in runs]) == []


def test_what_has_no_runs_has_its_data_alone():
    assert captions.budget(about([])) == "CIFAR-10."
    assert captions.budget(about([], titles=(), names=())) == ""
