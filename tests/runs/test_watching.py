"""What a run tells round by round, and the trackers of docs/tracking.md."""

import re
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from fedlib.core.log import Log
from fedlib.core.protos import Protos
from fedlib.runs import checkpoints, runner
from fedlib.runs.results import Result
from fedlib.runs.watching import by_round, runs_away
from fedlib.support.paths import ROOT
from tests.runs.test_runner import assert_same_log, small


class Told(list):
    """What a watched run told, in order."""

    def __call__(self, number, told):
        self.append((number, told))


def test_a_generator_that_runs_away_by_hand():
    """Prototypes at 0, 3 and 4, and one of nobody: 3, 1 and 1 to the nearest."""
    mean = torch.tensor([[0.0], [3.0], [4.0], [0.5]])
    server = SimpleNamespace(protos=Protos(mean, torch.tensor([2, 1, 1, 0])))

    def after(far: float, **more: float) -> SimpleNamespace:
        watched = {"distance": torch.tensor(far)} | more
        return SimpleNamespace(server=server, watched=watched, number=7)

    limit = 10 * 5 / 3
    assert runs_away(after(limit - 0.1, norm=1.0)) == ""
    told = runs_away(after(limit + 0.1, norm=1.0))
    assert "in round 7 what it makes is 16.8 from" in told
    assert "prototypes are 1.67 apart" in told
    assert runs_away(after(limit + 0.1)) == ""  # another method's distance
    alone = Protos(mean, torch.tensor([2, 0, 0, 0]))
    server.protos = alone  # no other prototype to measure by
    assert runs_away(after(limit + 0.1, norm=1.0)) == ""


def test_fedpas_generator_is_told_of_once_while_it_runs(monkeypatch, capsys):
    monkeypatch.delenv("FEDLIB_CI", raising=False)
    monkeypatch.setenv("FEDLIB_PROGRESS", "text")
    wild = {"generator_lr": 1.0, "generator_weight": 0.0}  # for the server alone
    runner.run(small("fedpa", rounds=3, hp=wild))
    told = capsys.readouterr().err
    assert told.count("the generator runs away: in round") == 1
    assert "fedpa on digits" in told
    runner.run(small("fedpa", rounds=3, hp={"adversarial_weight": 0.0}))
    assert "runs away" not in capsys.readouterr().err


def test_numbers_of_a_round_by_hand():
    """Two rounds from the fifth on, the second with an evaluation of three clients."""
    log = Log(
        cohort=torch.tensor([[0, 1], [1, 2]]),
        term={"pull": torch.tensor([[1.0, 3.0], [2.0, float("nan")]])},
        server={"gap": torch.tensor([0.5, 0.25])},
        sent={
            "up/mean": torch.tensor([[10, 1], [20, 2]]),
            "up/count": torch.tensor([[0, 3], [0, 4]]),
            "down/mean": torch.tensor([[5, 0], [6, 0]]),
        },
        evaluated=torch.tensor([6]),
        accuracy={"personal/head_own": torch.tensor([[1, 3, -1]])},
        samples=torch.tensor([[4, 4, 4]]),
    )
    found = dict(by_round(Result(small(), "", log), first=5))
    assert found == {
        5: {"term/pull": 2.0, "server/gap": 0.5, "sent/up": 14, "sent/down": 5},
        6: {
            "server/gap": 0.25,
            "sent/up": 26,
            "sent/down": 6,
            "accuracy/personal/head_own": 0.5,
        },
    }


def test_a_stored_run_tells_what_it_told_when_computed():
    spec, live, again = small("fedproto", rounds=4, eval_every=3), Told(), Told()
    first = runner.run(spec, watch=live)
    assert_same_log(first, runner.run(spec, watch=again))
    assert [number for number, _ in live] == [1, 2, 3, 4]
    assert live == again
    evaluated = [n for n, told in live if any(k.startswith("accuracy/") for k in told)]
    assert evaluated == [3, 4]
    _, last = live[-1]
    mean = float(first.accuracy("personal", "nearest_own")[-1].nanmean())
    assert last["accuracy/personal/nearest_own"] == mean
    assert (
        last["sent/up"]
        == first.payload()
        .query("round == 4 and direction == 'up'")[["floats", "ints"]]
        .to_numpy()
        .sum()
    )


def test_watching_moves_no_number(tmp_path, monkeypatch):
    spec = small("fedproto", seed=5)
    unwatched = runner.run(spec)
    monkeypatch.setenv("FEDLIB_CACHE", str(tmp_path / "elsewhere"))
    assert_same_log(unwatched, runner.run(spec, watch=Told()))


def test_who_watches_may_stop_a_run_and_goes_on_from_its_rounds():
    spec, told = small("fedproto", rounds=4, seed=6), Told()

    def stop(number, _):
        if number == 2:
            raise InterruptedError("enough")

    with pytest.raises(InterruptedError, match="enough"):
        runner.run(spec, watch=stop)
    assert checkpoints.under_way(spec) == (2, False)
    runner.run(spec, watch=told)
    assert [number for number, _ in told] == [1, 2, 3, 4]
    again = Told()
    runner.run(spec, watch=again)
    assert told == again


def blocks() -> list[str]:
    text = (ROOT / "docs" / "tracking.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def kept(monkeypatch):
    """Return what stand-ins for the three trackers are given."""
    kept = []

    class Open(SimpleNamespace):
        def __enter__(self):
            return self

        def __exit__(self, *_):
            return False

    def module(name, **content):
        made = ModuleType(name)
        made.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, made)

    def one(name, value, number):
        kept.append((number, {name: value}))

    def several(told, step):
        kept.append((step, told))

    writer = Open(add_scalar=one)
    module("torch.utils.tensorboard", SummaryWriter=lambda folder: writer)
    module("wandb", init=lambda project, config: Open(log=several))
    module(
        "mlflow",
        start_run=lambda run_name: Open(),
        log_dict=lambda settings, file: None,
        log_metrics=several,
    )
    return kept


@pytest.mark.parametrize("place", [1, 2, 3])
def test_the_trackers_lines_hand_on_every_round(kept, place):
    first, *trackers = blocks()
    assert len(trackers) == 3
    assert all(len(re.findall(r"\S.*\n", each)) <= 10 for each in trackers)
    names = {}
    exec(first, names)
    names["spec"] = small("fedproto", seed=7)
    exec(trackers[place - 1], names)
    told = dict(by_round(runner.run(names["spec"])))
    found = {number: {} for number in told}
    for number, part in kept:
        found[number] |= part
    assert found == told
