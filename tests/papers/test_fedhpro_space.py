"""Prototypes beside centralised ones: by hand, and where hyper-prototypes stand."""

import matplotlib.pyplot as plt
import pandas as pd
import pytest
import torch

from fedlib import papers
from fedlib.core.net import Net
from fedlib.core.protos import Protos
from fedlib.data import Groups
from fedlib.draw import panels
from fedlib.papers import study
from fedlib.papers.fedhpro import space
from fedlib.runs import runner

P = {"dataset": "digits", "rounds": 2, "seed": 3, "runs": ["fedavg"]}


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDLIB_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def made(method: str, **changes):
    spec = papers.fedhpro("digits", method, rounds=2, seed=3, **changes)
    return spec, runner.final(spec)


def embedded(final, state) -> torch.Tensor:
    data = final.federation.dataset
    x = (data.train_x / 255 - data.mean[0]) / data.std[0]
    with torch.no_grad():
        return final.federation.ctx.net(state, x).high


def test_fedavgs_prototypes_and_centralised_ones_by_hand():
    _, final = made("fedavg")
    y, mine = final.federation.dataset.train_y, final.mine.state
    whole = embedded(final, final.server.model.state)
    central = space.centralised(final)
    own = space.prototypes(final)
    of = final.federation.partition.train
    each = [embedded(final, {n: v[k] for n, v in mine.items()}) for k in range(len(of))]
    for c in range(10):
        means = [z[i[y[i] == c]].mean(0) for z, i in zip(each, of, strict=True)]
        held = [mean for mean in means if not mean.isnan().any()]
        torch.testing.assert_close(
            own.mean[c], torch.stack(held).mean(0), rtol=1e-4, atol=1e-4
        )
        everything = torch.cat(of)
        at = everything[y[everything] == c]
        torch.testing.assert_close(
            central.mean[c], whole[at].mean(0), rtol=1e-4, atol=1e-4
        )


def test_hyper_prototypes_are_taken_as_their_means():
    _, final = made("fedhpro")
    found = space.prototypes(final)
    torch.testing.assert_close(found.mean, final.server.hyper.points.mean(1))
    assert found.known.all()


def test_distances_go_round_by_round_and_end_where_the_run_does():
    spec, final = made("fedproto")
    pooled = Protos(torch.zeros_like(final.server.protos.mean), torch.ones(10))
    found = space.distances(spec, pooled)
    assert found["round"].tolist() == [1, 2]
    assert found["own"].iloc[-1] == space.off_centre(final)
    length = float(final.server.protos.mean.norm(dim=1).mean())
    assert found["pooled"].iloc[-1] == pytest.approx(length)
    few = space.distances(spec.model_copy(update={"eval_every": 2}), pooled)
    assert few["round"].tolist() == [2]


def test_distance_is_over_classes_that_both_have():
    a = Protos(torch.tensor([[3.0, 4.0], [1.0, 1.0]]), torch.tensor([2, 0]))
    b = Protos(torch.zeros(2, 2), torch.tensor([1, 1]))
    assert float(space.distance(a, b)) == 5.0


def test_a_plane_has_samples_of_all_clients_and_a_star_per_class():
    _, final = made("fedproto")
    points = space.plane(final, 6)
    for kind, count in (("sample", 6), ("prototype", 1)):
        labels = sorted(points["label"][points["kind"] == kind])
        assert labels == sorted([*range(10)] * count)
    told = space.summary(final, 6)
    assert told["intra"] < told["inter"]
    assert 10 < told["nearest"] <= 100
    assert told == space.summary(final, 6)


def test_without_a_global_model_nothing_is_central():
    _, final = made("local")
    with pytest.raises(ValueError, match="got local, expected a global model"):
        space.centralised(final)


def test_pooled_is_one_client_with_everything():
    (spec,) = study.pooled("fedhpro", P)
    final = runner.final(spec)
    data = final.federation.dataset
    assert final.federation.partition.train[0].sort().values.tolist() == list(
        range(len(data.train_y))
    )
    assert (spec.method, spec.rounds, spec.seed) == ("fedavg", 2, 3)
    artefact = {**P, "runs": ["fedavg", "fedproto"]}
    assert study.specs_for("fedhpro/fig2", artefact)[-1] == spec
    assert len(study.specs_for("fedhpro/fig3", artefact)) == 3
    assert isinstance(final.federation.ctx.net, Net)


def in_domains(final, names=("easy", "hard")):
    """Return a run whose clients hold two made-up domains by turns."""
    fed = final.federation
    of = torch.zeros(len(fed.dataset.test_y), dtype=torch.int64)
    for k, index in enumerate(fed.test.index):
        of[index] = k % 2
    groups = Groups(of[:1], of, tuple(names))
    data = fed.dataset._replace(groups=groups)
    return final._replace(federation=fed._replace(dataset=data))


def test_a_samples_domain_is_its_clients():
    _, final = made("fedproto")
    assert "domain" not in space.plane(final, 6)
    assert space.domains(final) == []
    two = in_domains(final)
    points = space.plane(two, 6)
    samples = points[points["kind"] == "sample"]
    assert set(samples["domain"]) == {"easy", "hard"} == {*space.domains(two)}
    assert set(points["domain"][points["kind"] == "prototype"]) == {""}
    spread = space.by_domain(points)
    for _, part in spread.groupby("domain"):
        assert sorted(part["label"][part["kind"] == "prototype"]) == [*range(10)]
    assert (spread["kind"] == "sample").sum() == len(samples)


def test_a_domains_share_is_of_its_own_samples():
    _, final = made("fedproto")
    two = in_domains(final)
    z, y, of, protos = space._test(two, 6)
    for name in ("easy", "hard"):
        here = [i for i, each in enumerate(of) if each == name]
        nearest = torch.cdist(z[here], protos.mean).argmin(1)
        share = 100 * float((nearest == y[here]).double().mean())
        assert space.summary(two, 6, name)["nearest"] == pytest.approx(share)


def test_a_marker_is_the_domain_and_a_colour_the_class():
    rows = [(d, c, 0.1 * c, i) for i, d in enumerate("AB") for c in (0, 1)]
    df = pd.DataFrame(rows, columns=["domain", "label", "x", "y"])
    fig, _ = panels.planes(df.assign(panel="one"), ["cat", "dog"])
    (legend,) = fig.legends
    assert [t.get_text() for t in legend.get_texts()] == ["cat", "dog", "A", "B"]
    marks = [line.get_marker() for line in legend.get_lines()]
    assert marks[0] == marks[1]
    assert marks[2] != marks[3]
    plt.close(fig)
