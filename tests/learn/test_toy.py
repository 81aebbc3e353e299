"""The toy federation: who owns what, what a play returns, and what is drawn of it."""

import base64
import functools
import io

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import to_rgb
from PIL import Image

from fedlib import registry
from fedlib.core.tree import flatten
from fedlib.data import load
from fedlib.draw import looks
from fedlib.learn import plots, toy
from fedlib.registry import METHODS


@pytest.fixture(autouse=True)
def closed():
    """Draw off screen and leave no figure open."""
    mpl.use("Agg")
    yield
    plt.close("all")


@functools.cache
def played(name: str) -> toy.Played:
    return toy.play(name, 2)


def test_shards_are_disjoint_and_hold_the_owned_classes():
    train, test = toy.shards()
    data = load("digits")
    for shards, y in ((train, data.train_y), (test, data.test_y)):
        assert torch.equal(shards.y, y)
        for index, mine in zip(shards.index, toy.OWNED, strict=True):
            assert set(y[index].tolist()) == set(mine)
            assert len(index.unique()) == len(index)
    counts = train.label_counts(toy.CLASSES)
    expected = [[c in mine for c in range(toy.CLASSES)] for mine in toy.OWNED]
    assert torch.equal(counts, toy.PER_CLASS * torch.tensor(expected))
    everything = torch.cat(train.index)
    assert len(everything.unique()) == len(everything) == 7 * toy.PER_CLASS
    whole = {c: int((data.test_y == c).sum()) for c in range(toy.CLASSES)}
    for index, mine in zip(test.index, toy.OWNED, strict=True):
        assert len(index) == sum(whole[c] for c in mine)


def test_a_play_is_deterministic():
    again = flatten(toy.play("fedproto", 2).last.mine)
    for name, value in flatten(played("fedproto").last.mine).items():
        assert torch.equal(value, again[name]), name


def test_a_seed_draws_other_weights_for_the_same_clients():
    first, other = (toy.federation("fedproto", seed=s) for s in (0, 1))
    zero = toy.federation("fedproto")
    a, b, c = (fed.method.init(fed.ctx)[1].state for fed in (first, other, zero))
    assert all(torch.equal(a[name], c[name]) for name in a)
    assert not torch.equal(a["head.0.weight"], b["head.0.weight"])
    for one, two in zip(first.train.index, other.train.index, strict=True):
        assert torch.equal(one, two)


def test_settings_for_small_problems_give_way_to_those_asked_for():
    assert toy.play("fedhpro", 1).federation.ctx.hp.hyper_steps == 10
    assert toy.play("fedhpro", 1, hyper_steps=2).federation.ctx.hp.hyper_steps == 2
    assert set(toy.SMALL) <= set(METHODS)


def test_a_play_has_at_least_one_round():
    with pytest.raises(ValueError, match="count, shown: got "):
        toy.play("local", 0)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_plays_and_the_shade_is_its_readout(name):
    """The shade at the embeddings of test samples gives the accuracy that is stated."""
    one = played(name)
    fed, (state, own, _) = one.federation, plots.shown(one)
    assert one.last.number == len(one.sent) == 2
    right = []
    for index in fed.test.index:
        z = fed.ctx.net(state, fed.test.inputs(index)).high
        given = plots._regions(one, state, own, z)
        right.append(float((given == fed.test.y[index]).float().mean()))
    found = fed.evaluate(one.last)
    rate = found["accuracy/" + "/".join(one.rule)] / found["samples"]
    assert one.accuracy == pytest.approx(float(rate.mean()))
    if one.rule.model == "global":
        assert np.mean(right) == pytest.approx(one.accuracy)
    elif one.rule.model != "ensemble":
        assert right[0] == pytest.approx(float(rate[0]))


def test_what_travels_and_stays_by_hand():
    """1390 weights, of them 12 in the head; 2, 2 and 3 classes of two numbers each."""
    names = ("local", "fedavg", "fedproto", "fedper", "fedgkd", "ccvr")
    table = toy.travels({name: played(name) for name in names}).set_index("method")
    model = "model 1390, samples 1 int"
    body = "low 1248, high 130, head 12"
    assert table.loc["Local"].tolist() == ["", "", body, 0]
    assert table.loc["FedAvg"].tolist() == [model, "model 1390", "", 2780]
    assert table.loc["FedProto"].tolist() == [
        "protos 4.7",
        "protos 8 (1 of 2)",
        body,
        pytest.approx(14 / 3 + 8 / 2),
    ]
    assert table.loc["FedPer"].tolist() == [
        "model 1378, samples 1 int",
        "model 1378",
        "head 12",
        2756,
    ]
    assert table.loc["FedGKD", "down"] == "model 1390, teacher 1390 (1 of 2)"
    assert table.loc["CCVR", "up"] == f"{model}, gaussians 14 (once)"
    assert table.loc["CCVR", "floats"] == 2780 + 14 / 2


def test_a_film_is_the_rounds_of_one_play():
    first, third = toy.film("fedproto", [1, 3])
    for one, count in ((first, 1), (third, 3)):
        again = toy.play("fedproto", count)
        assert one.last.number == count == len(one.sent)
        assert one.accuracy == again.accuracy
        for name, w in one.models.personal.items():
            assert torch.equal(w, again.models.personal[name])
    for shown in ([], [0, 1], [2, 1], [1, 1]):
        with pytest.raises(ValueError, match="expected ascending numbers from 1"):
            toy.film("local", shown)


def test_the_moving_plane_has_a_frame_for_each_round():
    frames = toy.film("fedproto", [1, 2, 4])
    html = plots.moving(frames, milliseconds=200).data
    assert all(f"{p.last.number}: {100 * p.accuracy:.0f} %" in html for p in frames)
    film = Image.open(io.BytesIO(base64.b64decode(html.split("base64,")[1][:-2])))
    assert film.n_frames == 3
    pictures, times = [], []
    for number in range(3):
        film.seek(number)
        pictures.append(np.asarray(film.convert("RGB")))
        times.append(film.info["duration"])
    assert times == [200, 200, 600]
    assert (pictures[0] != pictures[1]).any()
    assert (pictures[1] != pictures[2]).any()
    assert pictures[0].shape >= (330, 390, 3)
    for colour in looks.CYCLE[: toy.CLASSES]:  # not those of their neighbours
        own = (pictures[2] == np.round(255 * np.array(to_rgb(colour)))).all(-1)
        assert own.sum() > 30, colour  # of its star; marks are paler
    assert len(html) < 60_000  # pages keep it
    assert not plt.get_fignums()


def test_planes_returns_what_it_drew():
    names = ("local", "fedproto", "fedavg")
    fig, drawn = plots.planes({name: played(name) for name in names})
    samples = len(torch.cat(toy.shards()[1].index).unique())
    for ax, name in zip(fig.axes, names, strict=True):
        rows = drawn.loc[drawn["method"] == name]
        points = np.concatenate([np.asarray(c.get_offsets()) for c in ax.collections])
        marks = rows.loc[rows["kind"] == "sample"]
        stars = rows.loc[rows["kind"] == "prototype"]
        expected = pd.concat([marks.sort_values("label", kind="stable"), stars])
        np.testing.assert_allclose(points, expected[["x", "y"]].to_numpy(), rtol=1e-6)
        assert len(marks) == samples
        assert len(stars) == (toy.CLASSES if name == "fedproto" else 0)
        title = ax.get_title()
        assert title.startswith(f"{registry.title(name)}: ")
        assert f"{100 * played(name).accuracy:.0f} %" in title
        x, (x0, x1) = rows["x"].to_numpy(), ax.get_xlim()
        assert x0 < x.min() < x.max() < x1


def test_stars_are_what_the_server_keeps_of_classes():
    """Prototypes that predict nothing, too, and every component of a mixture."""
    (early, one) = toy.film("gfpl", [2, 3])
    assert plots._stars(early)[1] == []  # before the first exchange
    mixtures = one.last.server.mixtures
    expected = [
        (c, mixtures.mean[c, m].tolist())
        for c in range(toy.CLASSES)
        for m in range(mixtures.weight.shape[1])
        if mixtures.weight[c, m] > 0
    ]
    where, classes = plots._stars(one)
    assert list(zip(classes, where.tolist(), strict=True)) == expected
    assert len(expected) > toy.CLASSES
    kept = played("fedpg").last.server.protos
    where, classes = plots._stars(played("fedpg"))
    assert torch.equal(where, kept.mean)
    assert classes == [0, 1, 2, 3]
    _, drawn = plots.planes({"fedpg": played("fedpg")})
    stars = drawn.loc[drawn["kind"] == "prototype", ["x", "y"]].to_numpy()
    np.testing.assert_allclose(stars, kept.mean, rtol=1e-6)


def test_classes_that_the_drawn_client_lacks_are_hollow_and_never_its_own_answer():
    fig, _ = plots.planes({name: played(name) for name in ("fedproto", "fedavg")})
    personal, shared = fig.axes
    for c, marks in enumerate(personal.collections[: toy.CLASSES]):
        assert bool(np.size(marks.get_facecolor())) == (c in toy.OWNED[0])
    for c, marks in enumerate(shared.collections[: toy.CLASSES]):
        colour = np.asarray(marks.get_facecolor())[0]
        assert tuple(colour[:3]) == to_rgb(looks.CYCLE[c])
    shades = np.unique(np.asarray(personal.images[0].get_array()))
    assert set(shades.tolist()) <= set(toy.OWNED[0])


def test_whose_model_is_drawn():
    assert plots.shown(played("fedavg"))[1:] == ((0, 1, 2, 3), "one model for all")
    assert plots.shown(played("local"), 2)[1:] == ((0, 2, 3), "model of client 2")
    state, _, whose = plots.shown(played("fedensemble"))
    assert whose == "of the vote; their mean"
    for name, value in played("fedavg").last.server.model.state.items():
        assert torch.equal(state[name], value)
