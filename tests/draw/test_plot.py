"""Figures: a style for every method, the numbers drawn, and equal bytes."""

from itertools import combinations, pairwise
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from fedlib import registry
from fedlib.draw import layout, looks, panels, plot, saving, shaded
from fedlib.registry import METHODS
from fedlib.support.paths import ROOT

LINES = looks.LINES
OWN = ["gfpl", "fedpa", "fedmps", "fedhpro", "fedpg"]
TOGETHER = {  # what each paper draws in one figure
    "gfpl": "gfpl local fesem fedprox fedper fedavg fedrep fedproto fedfa fedpa",
    "fedpa": "fedpa fedavg fedprox fedensemble fedgen fedhkd",
    "fedmps": "fedmps local fedavg fedprox moon fedntd fedgkd fedproc fedproto",
    "fedhpro": "fedhpro local fedavg fedprox moon fedproto fedtgp fedgmkd fedrcl fedsa",
    "fedpg": "fedpg local fedavg fedprox fedntd moon fedgen vhl ccvr fedproto",
    "own": " ".join(OWN),
}
DRAWN = {name for group in TOGETHER.values() for name in group.split()}


@pytest.fixture(autouse=True)
def closed():
    """Draw off screen and leave no figure open."""
    mpl.use("Agg")
    yield
    plt.close("all")


def curve_frame(methods: list[str], rounds: int = 6) -> pd.DataFrame:
    rows = [
        (r, m, 0.1 * r + 0.01 * i) for i, m in enumerate(methods) for r in range(rounds)
    ]
    return pd.DataFrame(rows, columns=["round", "method", "accuracy"])


def rectangles(ax: Axes) -> list[Rectangle]:
    return [patch for patch in ax.patches if isinstance(patch, Rectangle)]


def test_every_method_has_a_style_and_a_printed_name():
    assert set(METHODS) >= DRAWN
    for name in METHODS:
        assert registry.title(name).lower() == name
        assert looks.style(name).label == registry.title(name)
    assert registry.title("fedmps") == "FedMPS"
    assert registry.title("without soft labels") == "without soft labels"


def test_styles_differ_also_without_colour():
    drawn = {name: looks.style(name) for name in METHODS}
    assert len({(s.marker, s.line) for s in drawn.values()}) == len(METHODS)
    assert [n for n, s in drawn.items() if s.line == "-"] == OWN


@pytest.mark.parametrize(("room", "line"), [("methods", {"-"}), ("baselines", LINES)])
def test_a_line_in_the_registry_gives_a_method_a_look_of_its_own(
    monkeypatch, room, line
):
    before = {name: looks.style(name) for name in METHODS}
    for i in range(6):
        new = ("New", f"fedlib.{room}.new{i}")
        monkeypatch.setitem(METHODS, f"new{i}", new)
    after = {name: looks.style(name) for name in METHODS}
    assert {name: after[name] for name in before} == before
    assert len({(s.marker, s.line) for s in after.values()}) == len(before) + 6
    assert {after[f"new{i}"].line for i in range(6)} <= set(line)
    taken = {style.colour for style in before.values()}
    assert not taken & {after[f"new{i}"].colour for i in range(len(looks.ADDED))}


@pytest.mark.parametrize("group", TOGETHER)
def test_methods_of_one_paper_differ_in_colour_and_in_marker(group):
    drawn = [looks.style(name) for name in TOGETHER[group].split()]
    for a, b in combinations(drawn, 2):
        assert a.colour != b.colour, (a.label, b.label)
        assert a.marker != b.marker, (a.label, b.label)


def linear(colour: str) -> np.ndarray:
    c = np.array(to_rgb(colour))
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def test_colours_stand_out_from_white_paper():
    for colour in looks.CYCLE + looks.ADDED:
        contrast = 1.05 / (linear(colour) @ [0.2126, 0.7152, 0.0722] + 0.05)
        assert contrast > 2.0, colour


# Machado, Oliveira & Fernandes 2009, severity 1.0, in linear RGB.
BLIND = {
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
}


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of linear RGB under D65."""
    to_xyz = [
        [0.4124, 0.3576, 0.1805],
        [0.2126, 0.7152, 0.0722],
        [0.0193, 0.1192, 0.9505],
    ]
    xyz = np.array(to_xyz) @ rgb.clip(0, 1) / [0.9505, 1.0, 1.089]
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("kind", BLIND)
def test_colours_stay_apart_for_colour_blind_readers(kind):
    every = looks.CYCLE + looks.ADDED
    seen = {c: lab(np.array(BLIND[kind]) @ linear(c)) for c in every}
    for a, b in combinations(seen, 2):
        assert np.linalg.norm(seen[a] - seen[b]) > 9, (a, b)


def test_no_two_methods_share_colour_and_marker():
    """They are told apart where there are no lines, as in the leaderboard."""
    drawn = [looks.style(name) for name in METHODS]
    assert len({(s.colour, s.marker) for s in drawn}) == len(METHODS)


@pytest.mark.parametrize("company", [[], ["fedavg"], ["Chance", "moon", "none"]])
def test_a_variant_has_its_methods_colour_in_any_company(company):
    variants = ["FedPA (reference)", "FedPA, squared", "FedAvg (learning_rate=0.01)"]
    look = looks.styles([*company, *variants])
    for name, method in zip(variants, ("fedpa", "fedpa", "fedavg"), strict=True):
        own = looks.style(method)
        assert look[name].colour in {looks.shade(own.colour, i) for i in range(3)}
        assert look[name].hollow
        assert not own.hollow
        assert look[name].line != own.line
    assert len({(s.marker, s.line) for s in look.values()}) == len(look)
    assert len({(s.colour, s.line, s.marker) for s in look.values()}) == len(look)


@pytest.mark.parametrize("method", OWN)
def test_six_variants_of_a_method_are_apart_in_line_or_in_grey(method):
    title = registry.title(method)
    variants = [f"{title} ({name})" for name in [*looks.PLACES, "a", "b"][-7:]]
    look = looks.styles([method, *variants])
    assert len({s.line for s in look.values()}) == 6
    for a, b in combinations(look.values(), 2):
        light = [lab(linear(s.colour))[0] for s in (a, b)]
        assert a.line != b.line or abs(light[0] - light[1]) > 10, (a, b)
    for name in variants:
        contrast = 1.05 / (linear(look[name].colour) @ [0.2126, 0.7152, 0.0722] + 0.05)
        assert contrast > (2 if look[name].colour == looks.style(method).colour else 3)


def test_a_variant_looks_alike_beside_others_and_by_either_name():
    first = looks.styles(["fedpa", "FedPA (po_dist=mse)", "FedPA (reference)"])
    second = looks.styles(["FedPA (reference)", "FedPA, new", "FedPA, squared"])
    assert first["FedPA (po_dist=mse)"] == second["FedPA, squared"]
    assert first["FedPA (reference)"] == second["FedPA (reference)"]
    assert second["FedPA, squared"].label == "FedPA (squared)"


def test_a_name_is_of_the_method_that_it_begins_with():
    assert looks.family("fedpa") == looks.family("FedPA+fc") == "fedpa"
    assert looks.family("GFPL without pseudo-features") == "gfpl"
    assert looks.family("FedPAx") is looks.family("Released log") is None


def test_controls_are_grey_and_others_have_colours_that_nobody_has():
    names = ["fedmps", "fedproto", "Chance", "Class mean", "no contrast", "low"]
    look = looks.styles(names)
    assert look["Chance"].colour in {looks.shade(looks.GREY, i) for i in range(3)}
    assert look["Chance"].line != look["Class mean"].line
    colours = {look[n].colour for n in ("fedmps", "fedproto", "no contrast", "low")}
    assert len(colours) == 4
    assert look["fedmps"] == looks.style("fedmps")


def test_a_title_has_the_looks_of_its_method():
    look = looks.styles(["Local", "FedMPS", "FedMPS (as released)"])
    assert look["Local"] == looks.style("local")
    assert look["FedMPS"] == looks.style("fedmps")
    assert look["FedMPS (as released)"].hollow


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("FedHPro (hpal=raw_sum, clip=5.0)", "FedHPro (raw, clipped at 5)"),
        ("FedAvg (learning_rate=0.01)", "FedAvg (rate 0.01)"),
        ("GFPL (some_switch=a_value)", "GFPL (some switch a value)"),
        ("FedPA (reference)", "FedPA (as released)"),
        ("prototypes_in_both", "prototypes in both"),
        ("Weight, $\\lambda_c$", "Weight, $\\lambda_c$"),
        ("n = 3, unchanged", "n = 3, unchanged"),
    ],
)
def test_code_in_words(code, said):
    assert looks.words(code) == said


def two_panels(first: list[float], second: list[float], titles=("A, x", "A, y")):
    rows = [
        (title, method, i, factor * value)
        for title, values in zip(titles, (first, second), strict=True)
        for method, factor in (("fedavg", 1.0), ("fedmps", 2.0))
        for i, value in enumerate(values)
    ]
    return pd.DataFrame(rows, columns=["panel", "method", "round", "value"])


LOSS = {"y": "value", "percent": False}


def test_panels_of_one_quantity_share_their_axis():
    for draw in (
        plot.curves,
        lambda df, **o: panels.lines(df, x="round", panel="panel", **o),
    ):
        same, _ = draw(two_panels([1.0, 2.0], [1.5, 3.0]), **LOSS)
        assert same.axes[0].get_ylim() == same.axes[1].get_ylim()
        apart, _ = draw(two_panels([1.0, 2.0], [1.5, 3.0], ("A", "B")), **LOSS)
        assert apart.axes[0].get_ylim() != apart.axes[1].get_ylim()
        lost, _ = draw(two_panels([1.0, 2.0], [10.0, 30.0]), **LOSS)
        assert lost.axes[0].get_ylim() != lost.axes[1].get_ylim()


def test_curves_that_differ_a_hundredfold_have_a_logarithmic_axis():
    df = two_panels([1.0, 2.0], [1.0, 2.0], ("A", "B"))
    far = (df["panel"] == "A") & (df["method"] == "fedmps")
    for factor, zero, scale in (
        (49.0, 1, "linear"),
        (51.0, 1, "log"),
        (51.0, 0, "symlog"),
    ):
        changed = df.assign(value=df["value"].where(~far, df["value"] * factor))
        if not zero:
            changed.loc[[0, 1], "value"] = [0.0, 3.0]  # the median stays
        fig, _ = plot.curves(changed, **LOSS)
        assert [ax.get_yscale() for ax in fig.axes] == [scale, "linear"]
    below = df.assign(value=df["value"].where(~far, df["value"] * 200) - 1.5)
    assert plot.curves(below, **LOSS)[0].axes[0].get_yscale() == "linear"


def test_bars_on_a_logarithmic_axis_are_refused_and_dots_are_not(tmp_path):
    df = pd.DataFrame(
        {"way": ["up", "down"] * 2, "method": ["moon"] * 2 + ["gfpl"] * 2}
    )
    df["floats"] = [1e6, 2e6, 1e3, 3e3]
    fig, drawn = plot.bars(df, x="way", y="floats", group="method", percent=False)
    fig.axes[0].set_yscale("log")
    with pytest.raises(ValueError, match="bars on a log axis"):
        saving.save(fig, drawn, tmp_path / "bars")
    assert not list(tmp_path.iterdir())
    fig, drawn = panels.dots(df, row="method", x="floats", group="way", xlabel="n")
    saving.save(fig, drawn, tmp_path / "dots")
    (ax,) = fig.axes
    places = np.concatenate([c.get_offsets() for c in ax.collections])
    assert sorted(places[:, 0]) == sorted(df["floats"])
    assert [t.get_text() for t in ax.get_yticklabels()] == ["MOON", "GFPL"]
    pd.testing.assert_frame_equal(drawn, df)
    words = {"row": "method", "x": "floats", "group": "way", "xlabel": ""}
    none = df.assign(floats=[0.0, 2e6, 1e3, 3e3])  # a 0 has no place on the axis
    places = [
        c.get_offsets() for c in panels.dots(none, **words)[0].axes[0].collections
    ]
    assert sorted(np.concatenate(places)[:, 0]) == [1e3, 3e3, 2e6]
    with pytest.raises(ValueError, match="got -1.0 as least floats"):
        panels.dots(df.assign(floats=-1.0), **words)


@pytest.mark.parametrize(
    ("counts", "ends"),
    [
        ([[100, 0], [99, 102]], (0, 102)),
        ([[10, 0], [1, 4]], (0, 10)),
        ([[7, 7]], (0, 7)),
    ],
)
def test_shades_begin_at_0(counts, ends):
    """One image more of a hundred is no other shade, and hardly any is hardly any."""
    norm = shaded.shades([np.array(counts)], 1.0)
    assert (norm.vmin, norm.vmax) == ends
    fig, _ = shaded.heatmap(counts)
    (mesh,) = (c for c in fig.axes[0].collections if isinstance(c, QuadMesh))
    assert (mesh.norm.vmin, mesh.norm.vmax) == ends


def test_each_panel_may_have_class_names_of_its_own():
    names = {"a": ["x", "y"], "b": ["u", "v", "w"]}
    fig, _ = shaded.heatmaps({"a": [[1, 2]], "b": [[1, 2, 3]]}, class_names=names)
    shown = [[t.get_text() for t in ax.get_yticklabels()] for ax in fig.axes[:2]]
    assert shown == list(names.values())


@pytest.mark.parametrize("kind", ["curves", "bars", "heatmap", "images"])
def test_a_footnote_stands_below_all_else(kind):
    if kind == "images":
        fig = plt.figure(figsize=(3, 1))
        fig.add_axes((0.0, 0.0, 1.0, 1.0)).set_axis_off()
    else:
        fig, _ = DRAW[kind]()
    tall = fig.get_figheight()
    saving.footnote(fig, "Fashion-MNIST: 10 of 800 rounds; one seed. " * 3)
    fig.draw_without_rendering()
    (note,) = (t for t in fig.texts if t.get_gid() == "footnote")
    top = note.get_window_extent().y1
    assert fig.get_figheight() > tall
    assert note.get_window_extent().x1 <= fig.bbox.width
    assert all(legend.get_window_extent().y0 >= top for legend in fig.legends)
    for ax in fig.axes:
        box = ax.get_tightbbox()
        assert box.y0 >= top - 1
        assert not any(
            legend.get_window_extent().overlaps(box) for legend in fig.legends
        )
    saving.footnote(fig, "")
    assert len(fig.texts) == 1


@pytest.mark.parametrize("panels_of", [1, 2])
@pytest.mark.parametrize("letters", [*range(5, 40, 3)])
def test_a_legend_is_as_wide_as_the_picture_at_most(letters, panels_of):
    names = [
        f"{i} GMKD (raw, clipped at 5), Rate 0.01 Moon"[:letters] for i in range(9)
    ]
    rows = [(n, p, r, 0.5) for n in names for p in range(panels_of) for r in (1, 2)]
    df = pd.DataFrame(rows, columns=["method", "panel", "round", "accuracy"])
    fig, _ = plot.curves(df)
    fig.set_dpi(looks.RC["savefig.dpi"])
    fig.draw_without_rendering()
    box = fig.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= fig.bbox.width


def test_nine_lines_have_a_page_and_long_names_stand_in_three_columns():
    names = [f"FedHPro (raw, clipped at {i})" for i in range(9)]
    rows = [(n, r, 0.5) for n in names for r in (1, 2)]
    fig, _ = plot.curves(pd.DataFrame(rows, columns=["method", "round", "accuracy"]))
    assert fig.legends[0]._ncols == 3
    assert fig.get_figwidth() == looks.PAGE


def test_curves_draw_the_numbers_they_return():
    df = curve_frame(["fedavg", "fedmps"]).sample(frac=1, random_state=0)
    df["sd"] = 0.02
    fig, drawn = plot.curves(df)
    lines = {line.get_label(): line for line in fig.axes[0].lines}
    assert list(drawn.columns) == ["method", "round", "accuracy", "sd"]
    assert set(lines) == {"FedAvg", "FedMPS"}
    x, y = lines["FedMPS"].get_data()
    np.testing.assert_array_equal(x, range(6))
    np.testing.assert_allclose(np.asarray(y, float), 0.1 * np.arange(6) + 0.01)
    assert lines["FedMPS"].get_color() == looks.style("fedmps").colour
    assert lines["FedAvg"].get_marker() == looks.style("fedavg").marker
    fig.draw_without_rendering()
    assert "20" in [t.get_text() for t in fig.axes[0].get_yticklabels()]


def test_curves_have_a_panel_each_and_refuse_doubled_rows():
    df = curve_frame(["local"])
    both = pd.concat([df.assign(panel="CIFAR-10"), df.assign(panel="Fashion")])
    fig, drawn = plot.curves(both)
    assert [ax.get_title() for ax in fig.axes] == ["CIFAR-10", "Fashion"]
    assert len(drawn) == 12
    with pytest.raises(ValueError, match="two rows"):
        plot.curves(pd.concat([df, df]))
    with pytest.raises(ValueError, match=r"expected also \['accuracy'\]"):
        plot.curves(df.drop(columns="accuracy"))
    with pytest.raises(ValueError, match="no rows"):
        plot.curves(df.iloc[:0])


def settled(ends: list[float]) -> pd.DataFrame:
    rows = [
        (r, f"m{i}", e * r / (r + 1)) for i, e in enumerate(ends) for r in range(90)
    ]
    return pd.DataFrame(rows, columns=["round", "method", "accuracy"])


@pytest.mark.parametrize(
    ("ends", "window"),
    [
        ([0.9, 0.91, 0.92, 0.5], (60, 0.9 * 60 / 61, 0.92 * 89 / 90)),
        ([0.9, 0.9], (60, 0.8801, 0.8951)),  # no narrower than LEAST
        ([0.9, 0.8, 0.7], None),
        ([0.9], None),
    ],
)
def test_what_ends_close_together_is_enlarged_and_framed(ends, window):
    df = settled(ends)
    got = layout.crowded(df, "round", "accuracy", "method")
    if window is None:
        assert got is None
    else:
        assert got == pytest.approx(window, abs=1e-4)
    fig, drawn = plot.curves(df)
    assert len(fig.axes) == (1 if window is None else 2)
    assert len(drawn) == len(df)
    if window is None:
        return
    whole, large = fig.axes
    assert large.get_title() == "Enlarged, from round 60"
    (frame,) = rectangles(whole)
    (low, high), ends_at = large.get_ylim(), frame.get_bbox()
    assert (ends_at.y0, ends_at.y1) == pytest.approx((low, high))
    assert [len(ax.lines) for ax in fig.axes] == [len(ends)] * 2


def test_panels_of_one_quantity_stand_together_before_first():
    titles = ["Gap, after", "Loss", "Gap, before fitting", "Gap", "Length"]
    turn = ["Gap, before fitting", "Gap, after", "Gap", "Loss", "Length"]
    assert layout.in_turn(titles) == turn


def test_lines_on_each_other_are_moved_sideways_and_others_are_not():
    near = {"a": {1: 0.5, 2: 0.6}, "b": {1: 0.51, 3: 0.6}, "far": {1: 0.9}}
    assert layout.beside(near, 0.02, 4) == {"a": -2, "b": 2, "far": 0}
    assert set(layout.beside(near, 0.005, 4).values()) == {0}
    rows = [(m, v, 0.9 + 0.001 * v) for m in ("fedpa", "fedpg") for v in (1, 2)]
    df = pd.DataFrame(rows, columns=["method", "value", "accuracy"])
    fig, drawn = panels.lines(df.assign(dataset="digits"))
    fig.draw_without_rendering()
    across = [line.get_transform().transform((1, 0.901))[0] for line in data_lines(fig)]
    assert abs(across[0] - across[1]) == pytest.approx(3.5 / 72 * fig.dpi)
    assert list(drawn["accuracy"]) == list(df["accuracy"])


def data_lines(fig) -> list:
    return [line for line in fig.axes[0].lines if len(line.get_xdata()) == 2]


@pytest.mark.parametrize(
    ("limits", "wide"),
    [((0.98, 0.985), (0.95, 1.0)), ((0.5, 0.51), (0.48, 0.53)), ((0.2, 0.9),) * 2],
)
def test_an_axis_of_accuracies_spans_five_points_and_ends_at_all(limits, wide):
    ax = plt.figure().subplots()
    ax.set_ylim(limits)
    layout.five_points(ax)
    assert ax.get_ylim() == pytest.approx(wide)


def test_heatmap_has_clients_across_and_leaves_empty_cells_blank():
    counts = np.array([[0, 5, 7], [12, 0, 0]])  # 2 clients, 3 classes
    fig, drawn = shaded.heatmap(counts, title="toy", class_names=("a", "b", "c"))
    ax = fig.axes[0]
    mesh = ax.collections[0].get_array()
    assert mesh is not None
    assert mesh.shape == (3, 2)
    assert np.ma.getmaskarray(mesh).tolist() == [
        [True, False],
        [False, True],
        [False, True],
    ]
    written = {t.get_position(): t.get_text() for t in ax.texts}
    assert written == {(0.5, 1.5): "5", (0.5, 2.5): "7", (1.5, 0.5): "12"}
    assert ax.get_xlabel() == "Client"
    assert [t.get_text() for t in ax.get_yticklabels()] == ["a", "b", "c"]
    back = drawn.pivot(index="client", columns="class", values="count").to_numpy()
    np.testing.assert_array_equal(back, counts)


def test_counts_are_written_into_large_cells_only():
    crowded = np.full((60, 10), 1234)
    assert not shaded.heatmap(crowded)[0].axes[0].texts
    few = shaded.heatmap(crowded[:5])[0]
    assert len(few.axes[0].texts) == 50
    width = few.axes[0].get_window_extent().width / 5
    assert all(t.get_window_extent().width < width for t in few.axes[0].texts)


def test_heatmaps_share_a_colour_scale_and_refuse_bad_counts():
    fig, drawn = shaded.heatmaps({"a": np.eye(3) * 4, "b": np.eye(3) * 9})
    assert {ax.collections[0].get_clim() for ax in fig.axes[:2]} == {(0, 9)}
    sums = {name: part["count"].sum() for name, part in drawn.groupby("panel")}
    assert sums == {"a": 12, "b": 27}
    with pytest.raises(ValueError, match=r"counts\['a'\]: got shape \(3,\)"):
        shaded.heatmaps({"a": [1, 2, 3]})
    with pytest.raises(ValueError, match="negative"):
        shaded.heatmap([[1, -1]])
    with pytest.raises(ValueError, match="class_names: got 1 names, expected 2"):
        shaded.heatmap([[1, 1]], class_names=["a"])


def test_bars_have_the_given_heights_and_no_bar_for_missing():
    df = pd.DataFrame(
        {"run": ["fedavg", "moon", "fedmps"], "share": [0.5, np.nan, 0.8], "sd": 0.1}
    )
    fig, drawn = plot.bars(df, x="run", y="share")
    ax = fig.axes[0]
    heights = [bar.get_height() for bar in rectangles(ax)]
    np.testing.assert_array_equal(heights, [0.5, 0.8])
    middles = [bar.get_x() + bar.get_width() / 2 for bar in rectangles(ax)]
    np.testing.assert_allclose(middles, [0, 2])
    whiskers = ax.collections[0].get_segments()
    np.testing.assert_allclose(whiskers[0], [[0, 0.4], [0, 0.6]])
    np.testing.assert_allclose(whiskers[-1], [[2, 0.7], [2, 0.9]])
    assert [t.get_text() for t in ax.get_xticklabels()] == ["FedAvg", "MOON", "FedMPS"]
    assert drawn["share"].isna().tolist() == [False, True, False]


def test_grouped_bars_stand_side_by_side_with_one_legend_entry_each():
    rows = [(f"n = {n}", m, 0.1 * n) for n in (3, 4) for m in ("fedproto", "fedmps")]
    df = pd.DataFrame(rows, columns=["ways", "method", "accuracy"])
    fig, _ = plot.bars(df, x="ways", y="accuracy", group="method")
    edges = sorted(
        (b.get_x(), b.get_x() + b.get_width()) for b in rectangles(fig.axes[0])
    )
    assert len(edges) == 4
    assert all(a[1] <= b[0] for a, b in pairwise(edges))
    assert [t.get_text() for t in fig.legends[0].get_texts()] == ["FedProto", "FedMPS"]


def test_scatter_draws_points_and_present_prototypes():
    points, labels = np.arange(8.0).reshape(4, 2), np.array([0, 0, 2, 2])
    prototypes = np.array([[1.0, 2.0], [np.nan, np.nan], [5.0, 6.0]])
    fig, drawn = plot.scatter(points, labels, prototypes=prototypes, title="toy")
    stars = drawn[drawn["kind"] == "prototype"]
    assert stars["label"].tolist() == [0, 2]
    assert list(zip(stars["x"], stars["y"], strict=True)) == [(1, 2), (5, 6)]
    shown = np.concatenate(
        [np.asarray(c.get_offsets()) for c in fig.axes[0].collections]
    )
    assert len(shown) == 6
    assert [t.get_text() for t in fig.legends[0].get_texts()] == ["0", "2"]
    _, several = plot.scatter(
        points, labels, prototypes=prototypes[[0, 2]], prototype_labels=[2, 2]
    )
    assert several["label"].tolist() == [0, 0, 2, 2, 2, 2]
    with pytest.raises(ValueError, match=r"expected \[n, 2\], \[n\]"):
        plot.scatter(points, labels[:3])


DRAW = {
    "curves": lambda: plot.curves(curve_frame(["fedavg", "fedmps"])),
    "heatmap": lambda: shaded.heatmap(np.arange(6).reshape(2, 3)),
    "bars": lambda: plot.bars(curve_frame(["local"], 1), x="method", y="accuracy"),
    "scatter": lambda: plot.scatter(np.eye(2), [0, 1], prototypes=np.ones((2, 2))),
}


@pytest.mark.parametrize("kind", DRAW)
def test_files_have_equal_bytes_after_a_display_and_when_drawn_again(
    kind, tmp_path: Path
):
    fig, df = DRAW[kind]()
    first = saving.save(fig, df, tmp_path / "first")
    fig.savefig(tmp_path / "shown.png", dpi=90, bbox_inches="tight")
    second = saving.save(fig, df, tmp_path / "second")
    with mpl.rc_context({"font.size": 20, "pdf.fonttype": 3, "lines.linewidth": 9}):
        third = saving.save(*DRAW[kind](), tmp_path / "v1.2")
    assert [p.name for p in third] == ["v1.2.png", "v1.2.pdf", "v1.2.csv"]
    for a, b, c in zip(first, second, third, strict=True):
        assert a.read_bytes() == b.read_bytes() == c.read_bytes()
    png, pdf, csv = (p.read_bytes() for p in first)
    assert png.startswith(b"\x89PNG")
    assert int.from_bytes(png[16:20], "big") == 700  # 3.5 in at 200 dpi
    assert pdf.startswith(b"%PDF")
    assert b"Software" not in png
    assert b"Matplotlib" not in png + pdf
    assert b"CreationDate" not in pdf
    read = pd.read_csv(first[2])
    pd.testing.assert_frame_equal(read, df, check_dtype=False, rtol=1e-9)
    assert csv.endswith(b"\n")


def test_curves_and_bars_keep_the_columns_that_they_are_given():
    df = curve_frame(["fedavg", "fedmps"]).assign(panel="one", sd=0.5)
    names = {"round": "step", "accuracy": "decibels", "method": "run", "panel": "place"}
    named = df.rename(columns=names)
    fig, drawn = plot.curves(named, x="step", y="decibels", line="run", panel="place")
    assert list(drawn) == ["place", "run", "step", "decibels", "sd"]
    same, _ = plot.curves(df)
    for a, b in zip(fig.axes[0].lines, same.axes[0].lines, strict=True):
        np.testing.assert_array_equal(a.get_xydata(), b.get_xydata())
    assert fig.axes[0].get_title() == "one"
    with pytest.raises(ValueError, match=r"expected also \['accuracy'\]"):
        plot.curves(named, x="step", line="run")
    table = pd.DataFrame({"size": ["s", "m"], "kilobytes": [3.0, 4.0], "way": "up"})
    fig, drawn = plot.bars(table, x="size", y="kilobytes", group="way", percent=False)
    assert list(drawn) == ["size", "way", "kilobytes"]
    assert [bar.get_height() for bar in rectangles(fig.axes[0])] == [3.0, 4.0]
    _, drawn = shaded.heatmaps({"a": [[1, 2]]}, value="share")
    assert drawn["share"].tolist() == [1, 2]


def test_lines_keep_the_columns_that_they_are_given():
    rows = [("A", n, w, 10.0 * n) for n in (1, 2, 3) for w in ("up", "down")]
    df = pd.DataFrame(rows, columns=["place", "clients", "way", "kilobytes"])
    fig, drawn = panels.lines(
        df, x="clients", y="kilobytes", line="way", panel="place", percent=False
    )
    assert list(drawn) == ["place", "clients", "way", "kilobytes"]
    assert fig.axes[0].get_xlabel() == "clients"
    for line in fig.axes[0].lines[:1]:
        np.testing.assert_array_equal(line.get_xydata(), [[1, 10], [2, 20], [3, 30]])
    with pytest.raises(ValueError, match="two rows"):
        panels.lines(df, x="clients", y="kilobytes", line="place", panel="place")


def test_committed_numbers_are_called_what_they_are():
    """A column ``accuracy`` holds shares or percent, and bars have real names."""
    files = sorted((ROOT / "figures").rglob("*.csv"))
    assert len(files) > 50
    for path in files:
        df = pd.read_csv(path)
        assert not {"label", "group", "value"} <= set(df), path
        if "accuracy" in df:
            assert df["accuracy"].dropna().between(0, 100).all(), path


def test_stars_are_in_the_legend_where_there_are_prototypes():
    rows = [("one", 0.1, 0.2, 0, "sample"), ("one", 0.3, 0.4, 0, "prototype")]
    df = pd.DataFrame(rows, columns=["panel", "x", "y", "label", "kind"])
    for part, said in ((df, ["cat", "prototype"]), (df[:1], ["cat"])):
        (legend,) = panels.planes(part, ["cat"])[0].legends
        assert [t.get_text() for t in legend.get_texts()] == said
