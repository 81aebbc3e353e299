"""Names of a stored log, and how it grows."""

import pytest
import torch
from safetensors import safe_open

from fedlib import papers
from fedlib.core.log import Log, Rows
from fedlib.runs import address, runner

FLAT = {
    "cohort": torch.tensor([[0, 1]]),
    "term/supervised": torch.tensor([[0.5, 0.25]]),
    "server/gap": torch.tensor([3.0]),
    "sent/up/model": torch.tensor([[8, 2]]),
    "sent/down/model": torch.tensor([[4, 1]]),
    "evaluated": torch.tensor([1]),
    "accuracy/global/head_all": torch.tensor([[3, 4]]),
    "samples": torch.tensor([[5, 6]]),
    "watch/angle": torch.tensor([0.1]),
    "full/global/head_all": torch.tensor([[9]]),
    "full_samples": torch.tensor([[10]]),
    "final/up/gaussians": torch.tensor([[7, 7]]),
}


def test_a_log_has_its_names_on_disk_and_back():
    log = Log.of(FLAT)
    assert log.term == {"supervised": FLAT["term/supervised"]}
    assert list(log.sent) == ["up/model", "down/model"]
    assert log.accuracy["global/head_all"] is FLAT["accuracy/global/head_all"]
    assert log.full_samples.tolist() == [[10]]
    assert log.final.keys() == {"up/gaussians"}
    assert log.flat() == FLAT
    assert Log().flat() == {}
    assert Log.of({}).samples.numel() == 0


@pytest.mark.parametrize(
    "name", ["terms/a", "cohorts", "accuracy", "term/", "samples/a"]
)
def test_names_that_no_log_has_are_refused(name):
    message = rf"log: got '{name}', expected cohort, term/\.\.\., server/\.\.\., sent"
    with pytest.raises(ValueError, match=message):
        Log.of({name: torch.zeros(1)})


def test_stored_runs_keep_their_names():
    """The file of a run, read without the library."""
    given = {"clients": 2, "rounds": 2, "test": "full"}
    spec = papers.fedpg("digits", "ccvr", **given)
    runner.run(spec)
    with safe_open(address.folder(spec) / "result.safetensors", "pt") as file:
        shapes = {name: tuple(file.get_tensor(name).shape) for name in file.keys()}
    personal = {k for k in shapes if k.startswith("accuracy/personal/")}
    shared = {k for k in shapes if k.startswith("accuracy/global/")}
    assert {k.rpartition("/")[2] for k in personal} >= {"head_all", "nearest_own"}
    assert len(personal) == len(shared)
    for name in personal | shared:
        assert shapes.pop(name) == (2, 2)
    assert shapes == {
        "cohort": (2, 1),
        "term/supervised": (2, 1),
        "sent/up/model": (2, 2),
        "sent/up/samples": (2, 2),
        "sent/down/model": (2, 2),
        "sent/up/model_buffers": (2, 2),
        "sent/down/model_buffers": (2, 2),
        "evaluated": (2,),
        "samples": (2, 2),
        "full/global/head_all": (2, 1),
        "full_samples": (2, 1),
        "final/up/gaussians": (2, 2),
    }


def test_what_came_after_is_of_the_rounds_alone_where_nothing_was_evaluated():
    rows = Rows()
    for number in (1, 2):
        rows.add(Log(torch.tensor([number]), {"supervised": torch.tensor([0.5])}))
        if number == 1:
            rows.add(Log(evaluated=torch.tensor(1)))
            before = rows.counts()
    later = rows.stacked(before)
    assert later.cohort.tolist() == [[2]]
    assert later.evaluated.numel() == 0
    assert rows.stacked(rows.counts()).flat() == {}
