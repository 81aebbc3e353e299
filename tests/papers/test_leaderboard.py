"""The leaderboard: its grid of runs, its numbers by hand, and its figures."""

import dataclasses
import functools

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import fedlib
from fedlib import registry
from fedlib.core.log import Log
from fedlib.draw.looks import style
from fedlib.papers.ours import leaderboard, leaderboard_plots
from fedlib.registry import METHODS, title
from fedlib.runs.results import Result

GRID = {
    "dataset": "digits",
    "methods": ["local", "fedavg"],
    "partitions": ["nid1", "lda"],
    "clients": 3,
    "rounds": 2,
    "server_steps": 10,
    "seeds": [0],
}


TWICE = ("fedpa", "fedmps", "fedhpro", "fedpg")
SENT = {
    "sent/up/model": torch.tensor([[600, 30], [600, 30]]),
    "sent/down/model": torch.tensor([[0, 0], [300, 0]]),
}


@pytest.fixture(autouse=True)
def closed():
    """Draw off screen and leave no figure open."""
    mpl.use("Agg")
    yield
    plt.close("all")


def test_specs_are_partitions_by_methods_by_seeds():
    specs = leaderboard.specs(GRID | {"seeds": [0, 7]})
    assert [(s.partition.scheme, s.method, s.seed) for s in specs] == [
        (p, m, s) for p in ("nid1", "lda") for m in ("local", "fedavg") for s in (0, 7)
    ]
    setting = leaderboard.SETTINGS["digits"]
    for spec in specs:
        assert (spec.net, spec.training) == (setting.net, setting.training)
        assert (spec.clients, spec.rounds, spec.eval_every) == (3, 2, 2)
        assert spec.test == "full"
        assert spec.embedding is None


def test_no_methods_means_all_and_servers_keep_to_the_budget():
    specs = leaderboard.specs(GRID | {"methods": [], "partitions": ["two_class"]})
    hp = {leaderboard.label(s): s.hp for s in specs}
    assert [name for name in hp if name in METHODS] == list(METHODS)
    assert hp["fedpa"]["generator_steps"] == 10  # of 50
    assert hp["fedhpro"]["hyper_steps"] == 10  # of 30
    assert hp["fedtgp"]["server_epochs"] == 100  # they cost little: not cut
    roomy = leaderboard.specs(GRID | {"methods": ["fedpa"], "server_steps": 80})
    assert roomy[0].hp["generator_steps"] == 50
    assert hp["gfpl"]["first_exchange"] == hp["gfpl"]["exchange_every"] == 1
    longer = leaderboard.specs(GRID | {"methods": ["gfpl"], "rounds": 15})
    assert longer[0].hp["first_exchange"] == longer[0].hp["exchange_every"] == 3
    units = [s.method for s in specs if s.embedding == "unit"]
    assert units == ["fedmps", "fedmps"]  # as printed and as released


def test_the_budget_names_every_setting_that_is_cut():
    words = leaderboard.budget(GRID)
    assert words == "2 rounds, generator_steps and hyper_steps at most 10 per round"
    specs = leaderboard.specs(GRID | {"methods": [], "partitions": ["two_class"]})
    cut = set()
    for spec in specs:
        variant = {k: v for k, v in spec.hp.items() if k == "variant"}
        full = registry.method(spec.method).hp(**variant).model_dump()
        cut |= {k for k, v in spec.hp.items() if v != full[k]}
    # GFPL's exchanges are spread over the rounds that there are
    assert cut - {"first_exchange", "exchange_every"} == set(leaderboard.SERVER_STEPS)


def test_released_variants_have_rows_of_their_own():
    """Behind their methods, at the same budget, with all released switches."""
    specs = leaderboard.specs(GRID | {"methods": [], "partitions": ["two_class"]})
    names = [leaderboard.label(s) for s in specs]
    at = {name: names.index(f"{title(name)} (reference)") for name in TWICE}
    for name, place in at.items():
        assert names[place - 1] == leaderboard.method_of(names[place]) == name
        whole = registry.method(name).hp(variant="reference").model_dump()
        cut = {k for k, v in specs[place].hp.items() if v != whole[k]}
        assert cut <= set(leaderboard.SERVER_STEPS)
    assert [leaderboard.method_of(name) for name in METHODS] == list(METHODS)
    asked = GRID | {"methods": ["fedpa:reference"], "partitions": ["lda"]}
    assert leaderboard.label(leaderboard.specs(asked)[0]) == "FedPA (reference)"
    with pytest.raises(ValueError, match="variant"):
        leaderboard.specs(GRID | {"methods": ["fedavg:reference"]})


def test_a_released_variant_is_a_row_of_table_and_figures():
    results = [*boards(), made_up("fedpa:reference", "lda", [6, 5, 0], **SENT)]
    frame = leaderboard.table(results)
    assert frame["method"].tolist()[-1] == "FedPA (reference)"
    means = leaderboard.overall(frame)
    fig, _ = leaderboard_plots.bytes_page(frame, means)
    point = next(
        line
        for line in fig.subfigs[0].axes[0].lines
        if line.get_markerfacecolor() == "white"
    )
    assert point.get_markeredgecolor() == style("fedpa").colour
    ranks, _ = leaderboard_plots.ranks(frame, means)
    found = [t.get_text() for t in ranks.axes[0].get_yticklabels()]
    assert "FedPA (as released)" in found


def test_no_name_lies_on_the_line_of_the_method_that_is_silent():
    """Two names of a column at the line, and one alone under it; 16 others apart."""
    own = {"local": 0.6, "fedmps": 0.61, "FedMPS (reference)": 0.6, "gfpl": 0.59}
    own |= {name: 0.3 + 0.03 * i for i, name in enumerate(list(METHODS)[-16:])}
    sent = {"gfpl": 0.3} | dict.fromkeys(("fedmps", "FedMPS (reference)"), 0.1)
    means = pd.DataFrame(
        {"method": name, "own": value, "megabytes": sent.get(name, 1.0)}
        for name, value in own.items()
    )
    fig, _ = leaderboard_plots.bytes_page(means.assign(partition="lda"), means)
    ax = fig.subfigs[0].axes[0]
    fig.canvas.draw()
    line = ax.transData.transform((1.0, 0.6))[1]
    named = {t.get_text(): t for t in ax.texts if "sends nothing" not in t.get_text()}
    assert {"GFPL", "FedMPS", "FedMPS (as released)"} <= set(named)
    heights = []
    for name, text in named.items():
        box = text.get_window_extent()
        # the box has room for letters below the baseline, which these names lack
        assert not box.y0 + 0.25 * box.height < line < box.y1, name
        heights.append((box.y0 + box.y1) / 2)
    assert max(heights) < ax.bbox.y1
    assert min(heights) > ax.bbox.y0


@pytest.mark.parametrize("dataset", leaderboard.SETTINGS)
def test_every_partition_has_a_printed_name(dataset):
    assert list(leaderboard.SETTINGS[dataset].partitions) == list(
        leaderboard.PARTITIONS
    )


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="dataset: got 'mnits', expected one of"):
        leaderboard.specs(GRID | {"dataset": "mnits"})
    with pytest.raises(ValueError, match=r"partitions: got \['iid'\], expected some"):
        leaderboard.specs(GRID | {"partitions": ["lda", "iid"]})
    with pytest.raises(ValueError, match="did you mean 'fedavg'"):
        leaderboard.specs(GRID | {"methods": ["fedavgg"]})


RULES = {
    "local": "personal/head_all",
    "fedmps": "personal/nearest_own",
    "fedpa:reference": "received/head_all",
    "fedensemble": "ensemble/head_all",
}


def made_up(
    method: str,
    partition: str,
    right: list[int],
    by_rule: list[int] | None = None,
    **more: Tensor,
) -> Result:
    """Return a result of three clients with ten test samples, the third with none.

    ``right`` are right by the head over own classes, ``by_rule`` by the method's own.
    """
    spec = leaderboard.specs(GRID | {"methods": [method], "partitions": [partition]})
    rule = RULES.get(method, "global/head_all")
    log = {
        f"accuracy/{rule}": torch.tensor([[0, 0, 0], by_rule or right]),
        f"accuracy/{rule.split('/')[0]}/head_own": torch.tensor([[0, 0, 0], right]),
        "samples": torch.tensor([[10, 10, 0], [10, 10, 0]]),
        "full_samples": torch.tensor([[20], [20]]),
    }
    return Result(spec[0], "key", Log.of(log | more))


def boards() -> list[Result]:
    """Return local and FedAvg on two partitions.

    FedAvg sends 600 floats and 30 integers up in each of two rounds, and 300 floats
    down in the second: (1500 * 4 + 60 * 8) / 3 clients = 2160 bytes each.
    """
    whole = {"full/global/head_all": torch.tensor([[0], [15]])}
    return [
        made_up("local", "nid1", [9, 7, 0]),
        made_up("fedavg", "nid1", [5, 5, 0], [2, 2, 0], **SENT, **whole),
        made_up("local", "lda", [6, 6, 0]),
        made_up("fedavg", "lda", [6, 6, 0], [3, 3, 0], **SENT, **whole),
    ]


def test_table_and_overall_by_hand():
    frame = leaderboard.table(boards())
    nid1, lda = leaderboard.PARTITIONS["nid1"], leaderboard.PARTITIONS["lda"]
    assert frame["partition"].tolist() == [nid1, nid1, lda, lda]
    assert frame["method"].tolist() == ["local", "fedavg"] * 2
    assert frame["rule"].tolist() == ["personal/head_all", "global/head_all"] * 2
    assert frame["own"].tolist() == pytest.approx([0.8, 0.5, 0.6, 0.6])
    assert frame["by_rule"].tolist() == pytest.approx([0.8, 0.2, 0.6, 0.3])
    nothing = float("nan")
    np.testing.assert_allclose(frame["whole"], [nothing, 0.75, nothing, 0.75])
    np.testing.assert_allclose(frame["megabytes"], [0, 0.00216, 0, 0.00216])
    means = leaderboard.overall(frame).set_index("method")
    assert means.index.tolist() == ["local", "fedavg"]  # best mean rank first
    assert means["own"].tolist() == pytest.approx([0.7, 0.55])
    assert means["by_rule"].tolist() == pytest.approx([0.7, 0.25])
    assert means["rank"].tolist() == [1.25, 1.75]  # 1 and 2, then 1.5 each
    assert means.loc["fedavg", "whole"] == pytest.approx(0.75)
    assert means["megabytes"].tolist() == pytest.approx([0, 0.00216])


def test_no_method_gains_a_place_by_a_rule_of_its_own():
    """FedMPS's prototypes name more right than Local's head, its own head fewer."""
    alone = made_up("local", "lda", [6, 6, 0])
    ours = made_up("fedmps", "lda", [5, 5, 0], [9, 9, 0])
    means = leaderboard.overall(leaderboard.table([ours, alone])).set_index("method")
    assert means["rank"].to_dict() == {"local": 1, "fedmps": 2}
    lead = leaderboard.spread([ours, alone]).set_index("method").loc["fedmps"]
    assert lead["over_local"] == pytest.approx(-0.1)
    assert lead["by_rule_over_local"] == pytest.approx(0.3)


def test_the_whole_test_set_is_for_the_model_that_a_row_is_of():
    """FedEnsemble's vote, not its average; none where statistics stay with clients."""
    full = {"full/global/head_all": torch.tensor([[0], [15]])}
    vote = {"full/ensemble/head_all": torch.tensor([[0], [12]])}
    stays = made_up("fedpa:reference", "lda", [6, 5, 0], **full)
    voted = made_up("fedensemble", "lda", [6, 5, 0], **full, **vote)
    frame = leaderboard.table([stays, voted])
    np.testing.assert_allclose(frame["whole"], [float("nan"), 0.6])
    means = leaderboard.overall(frame)
    fig, _ = leaderboard_plots.ranks(frame, means)
    assert [t.get_text() for t in fig.axes[1].texts] == ["60.0"]


def test_seeds_are_averaged():
    first, other = (
        made_up("local", "lda", [6, 6, 0]),
        made_up("local", "lda", [8, 6, 0]),
    )
    frame = leaderboard.table([first, other])
    assert frame["own"].tolist() == pytest.approx([0.65])


def test_differences_are_taken_within_a_seed():
    """FedAvg's model is at 75 % with both seeds; one seed's clients are hard."""
    results = boards()
    for easy in boards():
        hard = easy.log.accuracy | {
            name: counts // 2 for name, counts in easy.log.accuracy.items()
        }
        log = easy.log._replace(accuracy=hard)
        spec = easy.spec.model_copy(update={"seed": 1})
        results.append(dataclasses.replace(easy, spec=spec, log=log))
    found = leaderboard.spread(results).set_index("method")
    # own of Local 0.7 and, counts rounded down, 0.325; of FedAvg 0.55 and 0.25
    assert found.loc["fedavg", "over_local"] == pytest.approx((-0.15 - 0.075) / 2)
    assert found.loc["fedavg", "over_local_sd"] == pytest.approx(0.075 / 2**0.5)
    assert found.loc["fedavg", "own_sd"] == pytest.approx(0.3 / 2**0.5)
    # by_rule of FedAvg 0.25 and 0.1
    assert found.loc["fedavg", "by_rule_over_local"] == pytest.approx(-0.3375)
    assert found.loc["fedavg", "by_rule_over_local_sd"] == pytest.approx(0.225 / 2**0.5)
    assert found.loc["fedavg", "by_rule_sd"] == pytest.approx(0.15 / 2**0.5)
    assert found.loc["local", "over_local"] == 0
    assert found.loc["fedavg", "over_fedavg"] == found.loc["fedavg", "whole_sd"] == 0
    assert np.isnan(found.loc["local", "over_fedavg"])
    alone = leaderboard.spread(results[:1])
    assert alone["own_sd"].isna().all()
    assert alone["over_fedavg"].isna().all()


@functools.cache
def real_run(method: str) -> Result:
    return fedlib.run(leaderboard.specs(GRID | {"methods": [method]})[0])


def test_megabytes_of_a_real_run_by_hand():
    """FedAvg: the model and its BatchNorm statistics both ways, a count of samples."""
    net = fedlib.federation(real_run("fedavg").spec).ctx.net
    held = net.init(torch.Generator()).values()
    floats = sum(v.numel() for v in held if v.is_floating_point())
    ints = sum(v.numel() for v in held if not v.is_floating_point())
    each_round = 4 * 2 * floats + 8 * (2 * ints + 1)
    assert leaderboard.megabytes(real_run("fedavg")) == 2 * each_round / 1e6
    assert leaderboard.megabytes(real_run("local")) == 0


def test_a_real_run_fills_the_table():
    row = leaderboard.table([real_run("fedavg")]).iloc[0]
    log = real_run("fedavg").log
    for column, rule in (("own", "head_own"), ("by_rule", "head_all")):
        rate = log.accuracy[f"global/{rule}"][-1] / log.samples[-1]
        assert row[column] == pytest.approx(float(rate.nanmean()))
    assert row["own"] != row["by_rule"]
    whole = log.full["global/head_all"][-1, 0] / log.full_samples[-1, 0]
    assert row["whole"] == pytest.approx(float(whole))


@pytest.mark.parametrize(
    "values",
    [[0.5] * 6, [0.0, 0.01, 0.02, 0.9], [0.98, 0.99, 1.0], [0.3, 0.1, 0.2], [0.4]],
    ids=str,
)
def test_labels_keep_their_order_and_their_gaps(values):
    placed = leaderboard_plots._spread(np.array(values), 0.1, 0.0, 1.0)
    order = np.argsort(values)
    assert (np.diff(placed[order]) >= 0.1 - 1e-6).all()
    assert placed.min() >= -1e-9
    assert placed.max() <= 1 + 1e-9


def test_labels_with_room_stay():
    values = np.array([0.5, 0.1, 0.9])
    placed = leaderboard_plots._spread(values, 0.1, 0.0, 1.0)
    np.testing.assert_array_equal(placed, values)


def test_bytes_page_draws_the_numbers_it_returns():
    frame = leaderboard.table(boards())
    means = leaderboard.overall(frame)
    fig, drawn = leaderboard_plots.bytes_page(frame, means)
    names = ["mean", *dict.fromkeys(frame["partition"])]
    panels = [ax for part in fig.subfigs for ax in part.axes]
    assert len(panels) == len(names) == 3
    for ax, name in zip(panels, names, strict=True):
        rows = drawn[drawn["partition"] == name].set_index("method")
        line, point = sorted(ax.lines, key=lambda one: one.get_linestyle() == "None")
        local, fedavg = rows.loc["local"], rows.loc["fedavg"]
        assert np.asarray(line.get_ydata()).tolist() == [local["own"]] * 2
        assert np.asarray(point.get_xdata()).tolist() == [fedavg["megabytes"]]
        assert np.asarray(point.get_ydata()).tolist() == [fedavg["own"]]
        assert point.get_color() == style("fedavg").colour
    labels = {text.get_text() for text in panels[0].texts}
    assert labels == {"FedAvg", "Local (sends nothing)"}


def test_ranks_writes_the_numbers_it_returns():
    frame = leaderboard.table(boards())
    fig, drawn = leaderboard_plots.ranks(frame, leaderboard.overall(frame))
    own, whole = fig.axes
    assert [t.get_text() for t in own.texts] == ["80.0", "60.0", "50.0", "60.0"]
    assert [t.get_text() for t in whole.texts] == ["75.0", "75.0"]
    assert [t.get_text() for t in own.get_yticklabels()] == ["Local", "FedAvg"]
    weights = {text.get_fontweight() for text in own.texts + whole.texts}
    assert weights == {"normal"}  # means over seeds, without a spread
    columns = ["partition", "method", "own", "whole"]
    pd.testing.assert_frame_equal(drawn, frame.loc[:, columns])
