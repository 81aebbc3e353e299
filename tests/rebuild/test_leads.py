"""Leads as printed beside those of notebooks' tables: what is read, said, and drawn."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from fedlib.draw.looks import GREEN, GREY, RED
from fedlib.rebuild import leads
from fedlib.rebuild.leads import Claim, Reading

FASHION = {"dataset": "fashion", "alpha": 0.3}
COLUMNS = ["method", "mean", "sd", "ahead", "seeds"]
ROWS = [
    ("fedpa", -6.0, 0.5, 0, 3),
    ("squared", 0.1, 0.4, 2, 3),
    ("released", 1.2, 0.3, 3, 3),
    ("once", 2.0, np.nan, 1, 1),
]


def fedpa(*methods: str, reduced: bool = False) -> Claim:
    readings = [
        Reading(f"by {m}", "fedpa/a", {"method": m}, reduced=reduced) for m in methods
    ]
    return Claim("fedpa", "fedavg", "table2", FASHION, "alpha 0.3", readings)


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Write leads as a notebook does."""
    monkeypatch.setenv("FEDLIB_FIGURES", str(tmp_path))
    (tmp_path / "cpu" / "fedpa").mkdir(parents=True)
    file = tmp_path / "cpu" / "fedpa" / "a.csv"
    pd.DataFrame(ROWS, columns=COLUMNS).to_csv(file, index=False)
    return file


def test_a_printed_lead_is_the_difference_of_two_printed_numbers():
    """Table II, Fashion-MNIST, alpha 0.3: 85.52 and 84.36."""
    assert leads.printed(fedpa()) == pytest.approx(85.52 - 84.36)


@pytest.mark.parametrize(
    "changes", [{"where": {"dataset": "fashion"}}, {"over": "fesem"}]
)
def test_a_lead_of_several_settings_or_of_none_is_refused(changes):
    with pytest.raises(ValueError, match="has not one number of fedpa and one of fe"):
        leads.printed(fedpa()._replace(**changes))


def test_ours_stand_beside_it(written):
    table = leads.leads([fedpa("fedpa", "released")], "cpu")
    assert table["claim"].unique().tolist() == ["FedPA over FedAvg: alpha 0.3"]
    assert table["reading"].tolist() == ["by fedpa", "by released"]
    assert table["mean"].tolist() == [-6.0, 1.2]
    assert table["sd"].tolist() == [0.5, 0.3]
    assert table["printed"].tolist() == pytest.approx([1.16, 1.16])


def test_what_is_not_written_is_empty(written):
    table = leads.leads([fedpa("nobody")], "cpu")
    assert table["mean"].isna().all()
    assert leads.leads([fedpa("fedpa")], "paper")["mean"].isna().all()
    fig, _ = leads.board(table)
    assert "not run" in [t.get_text() for t in fig.axes[0].texts]


def test_two_rows_that_could_be_meant_are_refused(written):
    pd.DataFrame(ROWS * 2, columns=COLUMNS).to_csv(written, index=False)
    with pytest.raises(ValueError, match=r"fedpa/a: .*'fedpa'.*: got 2 rows"):
        leads.leads([fedpa("fedpa")], "cpu")


def test_a_verdict_is_one_of_all_seeds(written):
    names = [row[0] for row in ROWS]
    table = leads.leads([fedpa(*names)], "cpu")
    looks = [leads.VERDICTS[leads.verdict(row)] for row in table.to_dict("records")]
    assert [colour for colour, _ in looks] == [RED, GREY, GREEN, GREY]  # one is none
    assert [marker for _, marker in looks] == ["<", "o", ">", "o"]


def test_only_a_cut_run_that_is_there_is_told(written):
    ran = leads.leads([fedpa("fedpa", reduced=True)], "cpu")
    assert [note.kind for note in leads.notes(ran)] == ["reduced"]
    assert not leads.notes(leads.leads([fedpa("fedpa")], "cpu"))
    assert not leads.notes(leads.leads([fedpa("nobody", reduced=True)], "cpu"))


def test_marks_stand_where_the_leads_are(written):
    mpl.use("Agg")
    table = leads.leads(
        [fedpa("fedpa", "released"), fedpa("once")._replace(setting="again")], "cpu"
    )
    fig, drawn = leads.board(table)
    pd.testing.assert_frame_equal(drawn, table)
    (ax,) = fig.axes
    ours = [bar.lines[0].get_xydata()[0] for bar in ax.containers]
    assert [x for x, _ in ours] == [-6.0, 1.2, 2.0]
    rows = dict(zip(ax.get_yticks(), ax.get_yticklabels(), strict=True))
    assert [rows[y].get_text() for _, y in ours] == [
        "by fedpa",
        "by released",
        "by once",
    ]
    texts = [t.get_text() for t in ax.texts]
    minus = "\N{MINUS SIGN}6.0 ± 0.5, 3 seeds"
    printed = ["+1.2 printed"] * 2
    assert texts == [*printed, minus, "+1.2 ± 0.3, 3 seeds", "+2.0, 1 seed"]
    plt.close("all")
