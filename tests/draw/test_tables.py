"""Rank-sum test, Cliff's delta, and tables in three forms, against hand-made values."""

import math
from statistics import NormalDist

import numpy as np
import pandas as pd
import pytest

from fedlib.draw.tables import (
    MARKS,
    compare,
    escape_latex,
    escape_markdown,
    mean_sd,
    plain,
    render,
)
from fedlib.runs import reports


def normal_p(x: list[float], y: list[float]) -> float:
    """Two-sided p of the rank sum from its definition: z = (W - mean) / sd."""
    ranks = {value: i for i, value in enumerate(sorted(x + y), 1)}  # no ties
    n, m = len(x), len(y)
    w = sum(ranks[value] for value in x)
    z = (w - n * (n + m + 1) / 2) / math.sqrt(n * m * (n + m + 1) / 12)
    return 2 * (1 - NormalDist().cdf(abs(z)))


def test_complete_separation_of_three_and_three_earns_a_star():
    found = compare([4, 5, 6], [1, 2, 3])
    assert abs(NormalDist().inv_cdf(1 - found.p / 2) - 1.964) < 5e-4
    assert round(found.p, 4) == 0.0495
    assert found.star
    assert found.cliffs_delta == 1
    assert found.size == "large"


def test_next_ordering_earns_none_and_has_delta_of_seven_ninths():
    x, y = [6.0, 5.0, 3.0], [4.0, 2.0, 1.0]  # one of nine pairs is the wrong way round
    found = compare(x, y)
    assert round(found.p, 3) == 0.127
    assert found.p == pytest.approx(normal_p(x, y), abs=1e-12)
    assert not found.star
    assert found.cliffs_delta == pytest.approx(7 / 9)


@pytest.mark.parametrize(
    ("x", "y", "ninths"),
    [([9, 8, 5], [5, 2, 1], 8), ([1, 5, 9], [2, 4, 9], 0), ([1, 2, 3], [3, 4, 5], -8)],
)
def test_cliffs_delta_is_the_double_loop(x, y, ninths):
    pairs = sum((a > b) - (a < b) for a in x for b in y)
    assert pairs == ninths
    assert compare(x, y).cliffs_delta == pytest.approx(ninths / 9)
    assert compare(y, x).cliffs_delta == pytest.approx(-ninths / 9)


@pytest.mark.parametrize(
    ("more", "size"),
    [
        (573, "negligible"),  # delta 0.146
        (574, "small"),  # 0.148
        (664, "small"),  # 0.328
        (666, "medium"),  # 0.332
        (736, "medium"),  # 0.472
        (738, "large"),  # 0.476
    ],
)
def test_size_of_delta_changes_at_the_published_thresholds(more, size):
    x = [1.0] * more + [-1.0] * (1000 - more)
    found = compare(x, [0.0])
    assert found.cliffs_delta == pytest.approx((2 * more - 1000) / 1000)
    assert found.size == size


@pytest.mark.parametrize("bad", [[], [[1.0]], [1.0, math.nan], [math.inf]])
def test_samples_that_cannot_be_compared_are_refused(bad):
    with pytest.raises(ValueError, match="^x: got"):
        compare(bad, [1.0])
    with pytest.raises(ValueError, match="^y: got"):
        compare([1.0], bad)


def test_mean_sd_divides_by_n_or_by_n_minus_one():
    values = [2.0, 4.0, 9.0]  # squared distances to 5: 9, 1, 16
    assert mean_sd(values, ddof=0) == pytest.approx((5, math.sqrt(26 / 3)))
    assert mean_sd(values, ddof=1) == pytest.approx((5, math.sqrt(26 / 2)))
    one = mean_sd([3.0], ddof=1)
    assert one.mean == 3
    assert math.isnan(one.sd)
    with pytest.raises(ValueError, match="values"):
        mean_sd([], ddof=0)
    with pytest.raises(ValueError, match="ddof"):
        mean_sd([1.0], ddof=2)


@pytest.fixture
def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "method": ["FedAvg", "MOON", "FedProto", "FedMPS"],
            "acc": [0.5, np.nan, 0.801, 0.9],
            "acc_sd": [0.01, np.nan, 0.02, 0.03],
            "floats": [40.0, 30.0, 10.0, 20.0],
            "star": [True, False, False, None],
        }
    )


def test_markdown_marks_best_and_second_and_leaves_missing_empty(frame):
    made = render(
        frame,
        ["acc", "floats"],
        sd={"acc": "acc_sd"},
        stars={"acc": "star"},
        best=["acc"],
        digits=1,
        scale=100,
    )
    assert made.markdown.splitlines() == [
        "| method | acc | floats |",
        "| --- | ---: | ---: |",
        r"| FedAvg | 50.0 ± 1.0\* | 4000.0 |",
        "| MOON |  | 3000.0 |",
        "| FedProto | <ins>80.1 ± 2.0</ins> | 1000.0 |",
        "| FedMPS | **90.0 ± 3.0** | 2000.0 |",
        "",
        MARKS,
    ]


def test_latex_is_booktabs_with_escapes(frame):
    frame["method"] = ["50 % of_a & b", "c^d", "#1 {x} $y$", "[e] ~\\"]
    spread, stars = {"acc": "acc_sd"}, {"acc": "star"}
    made = render(frame, ["acc"], sd=spread, stars=stars, best=["acc"])
    assert made.latex.splitlines() == [
        r"\begin{tabular}{lrl}",
        r"\toprule",
        r"method & acc & floats \\",
        r"\midrule",
        r"50 \% of\_a \& b & 0.50 $\pm$ 0.01{*} & 40.0 \\",
        r"c\textasciicircum{}d &  & 30.0 \\",
        r"\#1 \{x\} \$y\$ & \underline{0.80 $\pm$ 0.02} & 10.0 \\",
        r"{[}e] \textasciitilde{}\textbackslash{} & \textbf{0.90 $\pm$ 0.03} & 20.0 \\",
        r"\bottomrule",
        r"\end{tabular}",
        rf"\par{{\footnotesize {MARKS}}}",
    ]
    assert escape_latex(MARKS) == MARKS
    assert escape_markdown(MARKS) == MARKS


def test_text_is_escaped_character_by_character():
    assert escape_latex(r"\_%±") == r"\textbackslash{}\_\%$\pm$"
    assert escape_latex("± α ≤ − |<") == (
        r"$\pm$ $\alpha$ $\leq$ $-$ \textbar{}\textless{}"
    )
    assert escape_markdown("a|b_c*d\n<e>") == r"a\|b\_c\*d \<e\>"


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("-1.2", "$-$1.2"),
        ("-14.3 ± 1.7*", r"$-$14.3 $\pm$ 1.7{*}"),
        ("CIFAR-10, top-5", "CIFAR-10, top-5"),
        ("1-3 of 2e-3", "1-3 of 2e-3"),
        ("clip=-.5 (-1)", "clip=$-$.5 ($-$1)"),
        ("a - 1, b-c --x", "a - 1, b-c --x"),
    ],
)
def test_the_minus_of_a_number_is_none_of_a_word(text, printed):
    """A negative number stood with a hyphen."""
    assert escape_latex(text) == printed


def test_negative_numbers_have_a_minus_in_latex_alone():
    frame = pd.DataFrame({"run": ["a-1", "-2"], "lead": [-0.5, -0.25]})
    frame["sd"] = [0.25, 0.125]
    made = render(frame, ["lead"], sd={"lead": "sd"}, best=["lead"])
    assert made.latex.splitlines()[4:6] == [
        r"a-1 & $-$0.50 $\pm$ 0.25 \\",
        r"$-$2 & $-$0.25 $\pm$ 0.12 \\",
    ]
    assert "-0.50 ± 0.25" in made.markdown
    assert "a-1,-0.5,0.25" in made.csv


def test_csv_keeps_numbers_and_has_empty_fields(frame):
    made = render(frame, ["acc", "floats"], sd={"acc": "acc_sd"}, scale=100, digits=0)
    assert made.csv.splitlines() == [
        "method,acc,acc_sd,floats,star",
        "FedAvg,0.5,0.01,40,True",
        "MOON,,,30,False",
        "FedProto,0.801,0.02,10,False",
        "FedMPS,0.9,0.03,20,",
    ]
    assert made.csv == frame.to_csv(index=False, float_format="%.10g")


def marks(means: list, sds: list, **options) -> str:
    """Return a sign per row: * bold, _ underlined, - without a mark."""
    frame = pd.DataFrame({"v": means, "sd": sds}, dtype=float)
    made = render(frame, ["v"], **({"sd": {"v": "sd"}, "best": ["v"]} | options))
    code = {"**": "*", "<i": "_"}
    lines = made.markdown.splitlines()[2 : 2 + len(means)]
    return "".join(code.get(line[2:4], "-") for line in lines)


@pytest.mark.parametrize(
    ("means", "sds", "marked"),
    [
        ([70.0, 68.0], [1.5, 0.4], "*_"),  # 68.5 is above 68.4
        ([70.0, 68.0], [1.5, 0.5], "--"),  # 68.5 and 68.5 meet
        ([68.0, 70.0], [0.4, 1.5], "_*"),
        ([70.0, 68.0, 50.0], [1.0, 0.5, 19.0], "---"),  # the third reaches 69
        ([70.0, 60.0, 59.0], [1.0, 1.0, 1.0], "*--"),  # second and third are level
        ([70.0, 60.0, 55.0, 54.0], [1.0] * 4, "*_--"),
        ([70.0, 70.0], [0.0, 0.0], "--"),
        ([70.002, 70.001], [0.0, 0.0], "--"),  # both print 70.00
        ([70.0, 60.0], [None, None], "--"),  # one seed each
        ([70.0, 60.0, 50.0], [1.0, 1.0, None], "---"),  # one seed in the third
        ([70.0, 60.0, None], [1.0, 1.0, None], "*_-"),  # not evaluated is no competitor
        ([70.0, None], [1.0, None], "--"),
    ],
)
def test_a_lead_is_marked_beyond_the_spread_of_the_seeds_only(means, sds, marked):
    assert marks(means, sds) == marked


def test_nothing_is_marked_unasked_or_without_a_spread():
    assert marks([2.0, 1.0], [0.1, 0.1], best=[]) == "--"
    frame = pd.DataFrame({"v": [2.0, 1.0]})
    assert MARKS not in render(frame, ["v"]).markdown
    told = r"best: got \['v'\], expected columns with an sd: \[\]"
    with pytest.raises(ValueError, match=told):
        render(frame, ["v"], best=["v"])


def test_a_table_of_one_seed_has_no_mark_and_one_of_three_has():
    """Two methods, three seeds of hand-made accuracies: 70 ± 1 and 60 ± 1."""
    runs = pd.DataFrame(
        {
            "dataset": "digits",
            "method": ["fedmps"] * 3 + ["fedavg"] * 3,
            "best": [69.0, 70.0, 71.0, 59.0, 60.0, 61.0],
        }
    )
    look = {"sd": {"mean": "sd"}, "best": ["mean"], "blocks": ["dataset"]}
    three = render(reports.over_seeds(runs, "best"), ["mean"], **look)
    one = render(reports.over_seeds(runs.iloc[[0, 3]], "best"), ["mean"], **look)
    assert "**70.00 ± 1.00**" in three.markdown
    assert "<ins>60.00 ± 1.00</ins>" in three.markdown
    for text in (one.markdown, one.latex):
        assert not any(mark in text for mark in ("**", "<ins>", "\\textbf", "\\under"))


def test_zero_is_printed_as_zero_and_never_stands_for_missing():
    made = render(pd.DataFrame({"v": [0.0, None, -0.001]}), ["v"])
    assert made.markdown.splitlines()[2:] == ["| 0.00 |", "|  |", "| 0.00 |"]
    assert r"0.00 \\" + "\n \\\\\n0.00" in made.latex


def test_wrong_columns_and_values_are_named(frame):
    with pytest.raises(ValueError, match=r"\['accuracy'\]"):
        render(frame, ["accuracy"])
    with pytest.raises(ValueError, match=r"\['floats'\]"):
        render(frame, ["acc"], best=["floats"])
    with pytest.raises(ValueError, match="method: got 'FedAvg'"):
        render(frame, ["method"])
    with pytest.raises(ValueError, match="v: got inf"):
        render(pd.DataFrame({"v": [math.inf]}), ["v"])


def test_the_best_is_marked_in_each_block_of_rows():
    rows = [("a", "x", 1.0), ("a", "y", 2.0), ("b", "x", 9.0), ("b", "y", 8.0)]
    df = pd.DataFrame(rows, columns=["dataset", "method", "mean"]).assign(sd=0.25)
    look = {"sd": {"mean": "sd"}, "best": ["mean"]}
    found = render(df, ["mean"], **look, blocks=["dataset"]).markdown
    assert [line for line in found.splitlines() if "**" in line] == [
        "| a | y | **2.00 ± 0.25** |",
        "| b | x | **9.00 ± 0.25** |",
    ]
    with pytest.raises(ValueError, match=r"columns: got \['data'\]"):
        render(df, ["mean"], blocks=["data"])


def test_rows_without_a_value_of_the_setting_are_one_block():
    df = pd.DataFrame({"alpha": [0.1, np.nan, np.nan], "mean": [1.0, 2.0, 3.0]})
    look = {"sd": {"mean": "sd"}, "best": ["mean"]}
    marked = render(df.assign(sd=0.25), ["mean"], **look, blocks=["alpha"])
    assert "**3.00 ± 0.25**" in marked.markdown
    assert "<ins>2.00 ± 0.25</ins>" in marked.markdown


def test_a_csv_holds_names_and_print_has_titles():
    frame = pd.DataFrame({"dataset": ["cifar10", None], "mean": [1.0, 2.0]})
    titles = {"dataset": {"cifar10": "CIFAR-10"}.get, "method": str.upper}
    made = render(frame, ["mean"], names=titles)
    assert made.csv.splitlines()[1:] == ["cifar10,1", ",2"]
    for text in (made.markdown, made.latex):
        assert "CIFAR-10" in text
        assert "cifar10" not in text
        assert "None" not in text


def test_a_written_table_reads_as_aligned_text():
    names = {
        "kind": ["a|b*", "ends in \\", ""],
        "x": [1.0, 22.25, None],
        "sd": [0.5, 0.0, None],
        "n": [3, 4, 5],
    }
    look = {"sd": {"x": "sd"}, "best": ["x"], "digits": 1}
    shown = render(pd.DataFrame(names), ["x"], **look)
    assert plain(shown.markdown) == (
        "kind                    x  n\n"
        "a|b*          _1.0 ± 0.5_  3\n"
        "ends in \\  **22.2 ± 0.0**  4\n"
        f"                           5\n\n{MARKS}\n"
    )
    bare = render(pd.DataFrame({"x": [1.0]}), ["x"])
    assert plain(bare.markdown) == "   x\n1.00\n"
    assert plain("| x |\n| ---: |\n") == "x\n"  # of no rows


@pytest.mark.parametrize("text", ["", "words", "| a |\n| --- |\n| 1 | 2 |\n"])
def test_what_is_no_table_is_refused(text):
    with pytest.raises(ValueError, match="expected one table"):
        plain(text)
