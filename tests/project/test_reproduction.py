"""The sentences of page and notebooks rest on files that say the same."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

from fedlib.support.paths import ROOT

found = importlib.util.spec_from_file_location("claims", ROOT / "tools" / "claims.py")
assert found is not None
assert found.loader is not None
tool = importlib.util.module_from_spec(found)
found.loader.exec_module(tool)

FILE = "figures/cpu/a.csv"
TABLE = "method,rule,best,sd\nlocal,head,77.84,0.05\nfedmps,head,76.75,\n"
TABLE += "fedmps,near,76.85,0.004\n"


def page(root: Path, sentence: str) -> list[str]:
    """Write a page of one finding and return what is wrong with it."""
    (root / "figures/cpu").mkdir(parents=True, exist_ok=True)
    (root / tool.README).touch()
    (root / FILE).write_text(TABLE)
    text = f"# Page\n\nFree text, 12.3 points.\n\n{tool.FOUND}\n\n- {sentence}\n"
    (root / tool.PAGE).write_text(text + "\n## Numbers\n\n99.9\n")
    return tool.problems(root)


def test_a_claim_of_the_readme_is_held_too(tmp_path):
    assert page(tmp_path, f"See [it]({FILE}).") == []
    (tmp_path / tool.README).write_text(f'| a | [77.9]({FILE} "best; method=local") |')
    assert [problem[:4] for problem in tool.problems(tmp_path)] == ["77.9"]


def test_the_readme_tells_ten_claims_with_a_verdict_and_a_number_each():
    text = (ROOT / tool.README).read_text("utf-8")
    table = text.split("| paper | claim |")[1].split("\n\n")[0]
    rows = table.splitlines()[2:]
    assert len(rows) == 10
    for row in rows:
        assert len(tool.claims(row)) > 0, row
        verdict = row.split("|")[6].strip()
        assert re.match("held|not|untested", verdict), row


def link(text: str, title: str, file: str = FILE) -> str:
    return f'It is [{text}]({file} "{title}").'


def test_every_number_stands_in_its_file_and_every_sentence_has_one():
    assert tool.problems() == []


def test_the_page_says_enough_to_be_held_to():
    text = (ROOT / tool.PAGE).read_text("utf-8")
    assert len(tool.claims(text)) > 80
    parts = list(tool.found_in(text))
    assert len(parts) > 30
    assert not any(part.startswith(("- ", "|", "<!--")) for part in parts)


def test_links_of_the_page_are_there():
    text = (ROOT / tool.PAGE).read_text("utf-8")
    files = {file for _, file, _ in tool.LINK.findall(text)}
    assert [file for file in files if not (ROOT / file).exists()] == []


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("77.8", "best; method=local"),
        ("77.84 %", "best; method=local"),
        ("76.8", "best; method=fedmps; rule=head"),  # 76.75 rounds to either
        ("76.7", "best; method=fedmps; rule=head"),
        ("78", "best; method=local"),
        ("−1.1", "best; method=fedmps; rule=head less method=local"),
        ("1.0", "best; method=local less method=fedmps; rule=near"),
        ("77.8", "best; method=local less sd; method=local"),
        ("5 %", "sd*100; method=local"),
    ],
)
def test_a_number_may_be_rounded_a_percentage_or_a_difference(tmp_path, text, title):
    assert page(tmp_path, link(text, title)) == []


@pytest.mark.parametrize(
    ("text", "title", "why"),
    [
        ("77.9", "best; method=local", "the file has 77.84"),
        ("77.83", "best; method=local", "the file has 77.84"),
        ("1.1", "best; method=fedmps; rule=head less method=local", "has -1.09"),
        ("76.8", "best; method=fedmps", "2 rows"),
        ("76.8", "best; method=fedavg", "0 rows"),
        ("76.8", "worst; method=local", "no column 'worst'"),
        ("76.8", "best; model=local", "no column 'model'"),
        ("76.8", "sd; method=fedmps; rule=head", "could not convert"),
        ("from 1 to 2", "best; method=local", "2 numbers in the text"),
    ],
)
def test_a_number_that_the_file_does_not_have_is_named(tmp_path, text, title, why):
    (problem,) = page(tmp_path, link(text, title))
    assert why in problem


@pytest.mark.parametrize(
    ("sentence", "why"),
    [
        (link("1", "best", "figures/cpu/b.csv"), "no such file"),
        (f"See [it]({FILE}), 2.2 points ahead.", "no file behind '2.2'"),
        (f"See [it]({FILE}), 3 points ahead.", "no file behind '3 points'"),
        (f"See [it]({FILE}), 40 % of all.", "no file behind '40 %'"),
        (f"See [it]({FILE}). It is better.", "no artefact: It is better."),
        ("See [it](README.md).", "no artefact"),
        ("See [it](figures/cpu/b.png).", "no such file: figures/cpu/b.png"),
    ],
)
def test_a_sentence_without_its_artefact_is_named(tmp_path, sentence, why):
    (tmp_path / "README.md").touch()
    assert any(why in problem for problem in page(tmp_path, sentence))


def test_a_row_of_a_table_is_held_as_a_sentence_is(tmp_path):
    head = "By rule:\n\n  | rule | lead |\n  | --- | --- |\n  | head | {} |"
    held = f'[77.8]({FILE} "best; method=local")'
    problems = page(tmp_path, f"See [it]({FILE}).\n\n" + head[10:].format(held))
    assert problems == []
    problems = page(tmp_path, f"See [it]({FILE}).\n\n" + head[10:].format("2.2 points"))
    assert any("no file behind '2.2'" in problem for problem in problems)
    more = head[10:].format(held) + "\n  | near | better |"
    (problem,) = page(tmp_path, f"See [it]({FILE}).\n\n" + more)
    assert problem == "no artefact: near | better"


def test_settings_in_backticks_and_words_are_no_numbers(tmp_path):
    assert page(tmp_path, f"At rate `0.1`, 100 of 500 rounds, [it]({FILE}).") == []


def test_a_published_run_is_an_artefact_and_a_title_may_hold_a_full_stop(tmp_path):
    (tmp_path / "results").mkdir()
    assert page(tmp_path, "It ran in [this run](results).") != []  # not below it
    (tmp_path / "results/a.json").touch()
    assert page(tmp_path, "It ran in [this run](results/a.json).") == []
    text = 'It [77.8](figures/cpu/a.csv "best; method=local") holds. So [it](%s) is.'
    assert page(tmp_path, text % FILE) == []
    assert tool.sentences('A [1](b "c. D") e. F g.') == ['A [1](b "c. D") e.', "F g."]


UP = "../../../figures/cpu/a.csv"
ABOUT = {
    "seeds": [0, 1, 2],
    "notes": [{"kind": "reduced", "text": "reduced budget: mnist, 10 of 80 rounds"}],
}


def end(root: Path, said: str, about: dict | None = ABOUT) -> list[str]:
    """Write a notebook that closes with a sentence and return what is wrong with it."""
    (root / "figures/cpu/gfpl").mkdir(parents=True, exist_ok=True)
    (root / FILE).write_text(TABLE)
    if about is not None:
        (root / "figures/cpu/gfpl/fig9.json").write_text(json.dumps(about))
    (root / "notebooks/papers/gfpl").mkdir(parents=True, exist_ok=True)
    cells = [{"id": "cell-00", "source": ["99.9 %"]}]
    cells += [{"id": tool.SENTENCES, "source": said.splitlines(True)}] if said else []
    path = root / "notebooks/papers/gfpl/fig9.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    return tool.of_notebook("gfpl/fig9", root)


def test_a_notebook_s_sentences_are_held_to_files_beside_it(tmp_path):
    assert end(tmp_path, link("77.8", "best; method=local", UP)) == []
    two = link("77.8", "best; method=local", UP) + f" See\n[it]({UP}).\n\n[Too]({UP})."
    assert end(tmp_path, two) == []
    assert end(tmp_path, f"Three seeds, 10 of 80 rounds: [it]({UP}).") == []


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (link("77.9", "best; method=local", UP), "the file has 77.84"),
        (link("77.8", "best; method=local", FILE), "no such file"),
        (f"See [it]({UP}). It is better.", "no artefact: It is better."),
        (f"See [it]({UP}), 2.2 points ahead.", "no file behind '2.2'"),
        (f"One seed: [it]({UP}).", "one seeds, not 3"),
        (f"Over five seeds [it]({UP}).", "five seeds, not 3"),
        (f"After 10 of 100 rounds [it]({UP}).", "10 of 100 rounds, of which the"),
        (f"Of 1 of 5 local epochs [it]({UP}).", "1 of 5 local epochs, of which"),
        ("", "no cell 'sentences'"),
    ],
)
def test_what_a_notebook_s_end_gets_wrong_is_named(tmp_path, said, why):
    assert any(why in problem for problem in end(tmp_path, said))


def test_a_notebook_without_committed_files_says_nothing_of_them(tmp_path):
    assert end(tmp_path, "", None) == []
    (problem,) = end(tmp_path, "It [is](x).", None)
    assert "sentences of nothing" in problem


def test_a_notebook_that_is_wrong_fails_the_page(tmp_path):
    assert end(tmp_path, link("77.9", "best; method=local", UP)) != []
    (problem,) = page(tmp_path, link("77.8", "best; method=local"))
    assert problem.startswith("gfpl/fig9: 77.9")


@pytest.mark.parametrize(
    ("text", "title", "wanted"),
    [
        ("12.3", "best; method=local", "77.8"),
        ("12 dB", "best; method=local", "78 dB"),
        ("? points", "best; method=local", "77.8 points"),
        ("1,000.0", "best*100; method=local", "7,784.0"),
        ("2.20", "best; method=fedmps; rule=head less method=local", "−1.09"),
        ("-2.2", "best; method=fedmps; rule=head less method=local", "-1.1"),
        ("+0.0", "best; method=local", "+77.8"),
        ("+1.0", "best*-1; method=local", "−77.8"),
        ("0.1", "best*-0.0001; method=local", "0.0"),
        ("0.1 to 0.2", "best; method=local", "0.1 to 0.2"),
        ("1", "best; method=fedavg", "1"),
    ],
)
def test_numbers_are_refreshed_as_they_are_written(tmp_path, text, title, wanted):
    (tmp_path / "figures/cpu").mkdir(parents=True)
    (tmp_path / FILE).write_text(TABLE)
    new = tool.refreshed(link(text, title, UP), "notebooks/papers/gfpl", tmp_path)
    assert new == link(wanted, title, UP)
    assert tool.refreshed(f"See [it]({UP}), 5 %.", "x", tmp_path).endswith("), 5 %.")
