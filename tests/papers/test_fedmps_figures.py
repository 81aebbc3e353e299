"""What FedMPS's tables and figures compute beyond a grid of runs."""

from copy import deepcopy
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F

from fedlib.core import nets
from fedlib.papers import study
from fedlib.papers.fedmps import features as fedmps_features
from fedlib.papers.fedmps import plots, tables
from fedlib.papers.study import Study
from fedlib.runs import features, runner

P = {"dataset": "digits", "runs": ["fedproto", "fedmps"], "rounds": 2, "seed": 1234}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDLIB_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield study.study("fedmps", P | {"server_epochs": 1})


def test_settings_stand_beside_the_papers():
    paper = pd.DataFrame([("digits", 10, 14, 12, 4, 1)])
    paper.columns = ["dataset", *tables.SAMPLING]
    table = tables.sampling(["digits", "noise"], paper)
    assert table["setting"].tolist() == tables.SAMPLING * 2
    assert table["ours"].tolist() == [10, 13, 12, 4, 1, 10, 10, 9, 2, 1]
    assert table["gap"][:5].tolist() == [0, -1, 0, 0, 0]
    assert table["paper"][5:].isna().all()


def test_draws_are_those_of_the_papers_table_v():
    table, parts = tables.draws(["noise"], [3, 4], 1234)
    first = table.iloc[0]
    assert first[["clients", "n", "k", "t"]].tolist() == [20, "2 to 4", "9 to 10", "2"]
    assert (first.prototypes, first.one_owner, first.no_owner) == (59, 1, 0)
    assert first.train == sum(len(i) for i in parts["noise, n = 3"].train)
    assert first.test == 59 * 2
    assert table.iloc[1].n == "3 to 5"


def test_the_sd_over_clients_is_that_of_the_best_round(found):
    table, marks = tables.over_clients(found)
    for sd, result in zip(table["sd"], found.results, strict=True):
        each = 100 * result.accuracy(*result.paper_rule).numpy()
        assert sd == pytest.approx(each[each.mean(1).argmax()].std(ddof=0))
    assert marks["sd"]["mean"] == "sd"
    assert set(marks["values"]) <= set(table)


def test_sensitivity_by_hand():
    table = pd.DataFrame(
        [("d", "s", 0.1, 70.0), ("d", "s", 0.5, 74.0), ("d", "t", 1, 60.0)],
        columns=["dataset", "setting", "value", "mean"],
    )
    paper = pd.DataFrame([("d", "s", 0.5, 1.5)])
    paper.columns = ["dataset", "setting", "best", "sd"]
    rows = tables.sensitivity(table, paper).to_dict("records")
    assert (rows[0]["paper_best"], rows[0]["best"]) == (0.5, 0.5)
    assert (rows[0]["paper_sd"], rows[0]["sd"]) == (1.5, 2.0)  # of 70 and 74, ddof 0
    assert rows[1]["best"] == 1
    assert np.isnan(rows[1]["paper_best"])


def fixed(accuracies, sent):
    """A result with given accuracies in rounds 2, 4, ... and floats per round."""
    numbers = range(1, 2 * len(accuracies) + 1)
    return SimpleNamespace(
        paper_rule=("personal", "head_all"),
        spec=SimpleNamespace(test="clients"),
        evaluated=[*numbers][1::2],
        accuracy=lambda *_: torch.tensor([[a, a] for a in accuracies]),
        payload=lambda: pd.DataFrame({"round": numbers, "floats": sent}),
    )


def test_a_target_is_met_in_the_first_round_that_has_it(monkeypatch):
    cells = pd.DataFrame({"dataset": "digits", "method": ["a", "b"], "seed": 0})
    results = [fixed([0.2, 0.6, 0.5], 10), fixed([0.2, 0.5, 0.5], 10)]
    both = Study("fedmps", cells, results)
    table = tables.targets(both, 0.6 - 1e-7)
    assert table["rounds"].tolist()[0] == 4
    assert table["sent"].tolist()[0] == 40
    assert table[["rounds", "sent"]].iloc[1].isna().all()
    assert table["best"].tolist() == pytest.approx([60, 50])
    monkeypatch.setattr(tables, "cpu_seconds_per_round", lambda spec: 0.5)
    seconds = tables.seconds(both, 0.6 - 1e-7)
    assert seconds["per_round"].tolist() == [0.5, 0.5]
    assert seconds["to_target"].tolist()[0] == 2
    fig, drawn = plots.costs(seconds, {"to_target": "Seconds"})
    assert list(drawn) == ["method", "to_target"]
    assert [t.get_text() for t in fig.axes[0].texts] == ["2", "not reached"]


def test_planes_have_samples_and_the_prototypes_there_are(found):
    points, apart = fedmps_features.planes(found, ["high", "low"], client=0)
    assert apart["panel"].tolist() == [
        *("FedProto, high level", "FedProto, low level"),
        *("FedMPS, high level", "FedMPS, low level"),
    ]
    stars = points[points["kind"] == "prototype"]
    count = stars.groupby("panel").size()
    assert count.to_dict() == {
        "FedProto, high level": 4,  # client 0 has four classes
        "FedMPS, high level": 4,
        "FedMPS, low level": 4,
    }
    assert set(apart["samples"]) == {16}
    again, _ = fedmps_features.planes(found, ["high", "low"], client=0)
    pd.testing.assert_frame_equal(points, again)
    everyone, apart = fedmps_features.planes(found)
    ended = runner.final(found.results[1].spec)
    seen = features.features(ended, "personal", "test").out.high
    assert apart["active"][1] == len({place for _, place in seen.nonzero().tolist()})
    assert set(everyone["panel"]) == {"FedProto", "FedMPS"}
    assert (everyone["kind"] == "sample").sum() == 2 * 120


def test_layer_maps_by_hand():
    net = nets.build("digits_cnn", (1, 8, 8), 10)
    generator = torch.Generator().manual_seed(0)
    state = net.init(generator)
    x, y = torch.randn(3, 1, 8, 8, generator=generator), torch.tensor([1, 0, 7])
    first, last = fedmps_features.layer_maps(net, state, x, y)
    assert (first.channels, first.values.shape) == (8, (3, 4, 4))
    assert (last.channels, last.values.shape) == (16, (3, 2, 2))
    module = deepcopy(net.module).eval()
    module.load_state_dict(state)
    for i in range(3):
        a = module.low[:3](x[i : i + 1]).detach().requires_grad_()
        z = F.normalize(module.high(module.low[3:](a)))
        (slope,) = torch.autograd.grad(module.head(z)[0, y[i]], a)
        by_hand = sum(slope[0, c].clamp(min=0) * a[0, c] for c in range(8))
        torch.testing.assert_close(first.values[i], by_hand.detach())


def test_a_clients_maps_are_drawn_under_its_images(found):
    ended = runner.final(found.results[1].spec)
    frame = fedmps_features.client_maps(ended, 0, 5)
    assert frame["image"].nunique() == 5
    owned = [
        str(c) for c in ended.federation.partition.owns[0].nonzero()[:, 0].tolist()
    ]
    first = frame.drop_duplicates("image")["class"].tolist()
    assert first[:4] == owned  # each class once before any comes twice
    assert frame["value"].between(0, 1).all()
    image = frame[(frame["picture"] == "Image") & (frame["image"] == 0)]
    index = ended.federation.partition.test[0][0]
    pixels = ended.federation.dataset.test_x[index].flatten() / 255
    assert image["value"].to_numpy() == pytest.approx(pixels.numpy(), abs=1e-6)
    fig, drawn = plots.maps(frame)
    assert len(fig.axes) == 3 * 5 + 1
    assert len(drawn) == len(frame) == 5 * (64 + 16 + 4)
