"""What is numbers in README.md and REPRODUCTION.md is written by a tool."""

import importlib.util

import pandas as pd
import pytest

from fedlib.papers import PAPERS
from fedlib.support.paths import ROOT

found = importlib.util.spec_from_file_location(
    "write_results", ROOT / "tools" / "write_results.py"
)
assert found is not None
assert found.loader is not None
tool = importlib.util.module_from_spec(found)
found.loader.exec_module(tool)


@pytest.mark.parametrize("name", ["README.md", "REPRODUCTION.md"])
def test_numbers_are_those_of_the_committed_scoreboard(name):
    page = (ROOT / name).read_text("utf-8")
    assert tool.written(page, tool.sections()[name]) == page, "run `make results`"


def test_only_what_is_between_the_marks_changes():
    (a, b), (c, d) = tool.marks("one"), tool.marks("two")
    before = f"a\n{a}old\n{b}b\n{c}old\n{d}c\n"
    after = f"a\n{a}\nnew\n{b}b\n{c}\nmore\n{d}c\n"
    assert tool.written(before, {"one": "new", "two": "more"}) == after
    with pytest.raises(ValueError, match="got 0 of"):
        tool.written("a\n", {"one": "new"})
    with pytest.raises(ValueError, match="got 2 of"):
        tool.written(before + before, {"one": "new"})


@pytest.fixture
def board(tmp_path):
    """Write what became of two tables of one paper and one of another."""
    folder = tmp_path / tool.BOARD
    folder.mkdir(parents=True)
    rows = [
        ("fedpa", "2", "MNIST", 12, 4, 2, 1, 1, 2, 1, 1, "1 to 3", "full; net a_b"),
        ("fedpa", "3", "MNIST", 12, 0, 0, 0, 0, 0, 0, 0, "", ""),
        ("fedpa", "3", "CelebA", 2, 0, 0, 0, 0, 0, 0, 0, "", ""),
    ]
    rows += [(p, "1", "X", 1, 1, 1, 0, 0, 0, 0, 0, "1", "full") for p in PAPERS]
    names = ["paper", "table", "dataset", *tool.COUNTS, "seeds", "budget"]
    pd.DataFrame(rows, columns=names).to_csv(folder / "papers_tables.csv", index=False)
    return tmp_path


def test_a_line_for_each_paper_and_one_for_all(board):
    lines = tool.in_short(board).splitlines()
    assert lines[0].split(" | ")[1:4] == ["numbers", "run", "within"]
    assert len(lines) == 2 + len(PAPERS) + 1
    assert "| FedPA | 27 | 5 | 3 | 1 | 1 | 2 | 1 | 1 |" in lines
    assert lines[-1] == "| all | 31 | 9 | 7 | 1 | 1 | 2 | 1 | 1 |"


def test_a_sentence_sums_all_papers(board):
    text = tool.in_a_sentence(board)
    assert text.startswith("Of the 31 accuracies")
    assert " 9 ran on real data" in text
    assert " and 7 of them came within" in text
    assert "; 1 of the others do so by another reading" in text
    assert ". 1 more ran at a smaller budget." in text


def test_a_papers_table_has_what_ran_and_names_the_rest(board):
    text = tool.of_paper("fedpa", board)
    assert (
        "| 2 | MNIST | 12 | 4 | 2 | 1 | 1 | 2 | 1 | 1 | 1 to 3 | full; net a\\_b |"
        in text
    )
    assert "\n| 3 |" not in text
    assert text.endswith("\nNot run: table 3 (MNIST, CelebA: 14 numbers).\n")
    assert "Not run" not in tool.of_paper("gfpl", board)


RAN = """\
paper,table,column,row,setting,number,sd,ours,our sd,seeds,near,reference,\
reference sd,other,other sd,state,budget
fedpa,2,mean,FedAvg,"MNIST, a",88.87,0.5,88.54,,1,1.5,,,,,reproduced,full
fedpa,2,mean,FedPA,"MNIST, a",94.8,0.5,83.15,1.76,3,1.5,94.5,0.31,94.2,0.2,off,full
fedpa,2,mean,FedPA,"MNIST, b",96.8,0.5,88.2,,1,1.5,96.9,,95.2,,off,full
fedpa,2,mean,FedProx,"MNIST, b",96.8,0.5,88.2,,1,1.5,,,,,reduced,10 of 20 rounds
fedpa,5,parameters,FedAvg,,7,,7,,1,0,,,,,reproduced,full
"""


def test_ours_stands_beside_each_printed_number_that_ran_whole(tmp_path):
    (tmp_path / tool.BOARD).mkdir(parents=True)
    (tmp_path / tool.BOARD / "papers_ran.csv").write_text(RAN, "utf-8")
    lines = tool.beside("fedpa", tmp_path).strip().splitlines()[2:]
    assert lines == [
        "| method | Table 2, MNIST, a | Table 2, MNIST, b |",
        "| --- | ---: | ---: |",
        "| FedAvg | **88.5** (88.87) |  |",
        "| FedPA | 83.2 ± 1.8 (94.80) | 88.2 (96.80) |",
        "| FedPA, E as epochs | **94.2 ± 0.2** | 95.2 |",
        "| FedPA, as released | 94.5 ± 0.3 | 96.9 |",
    ]
    assert tool.beside("gfpl", tmp_path) == ""
