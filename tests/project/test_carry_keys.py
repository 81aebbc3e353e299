"""Runs are carried over to new keys where no bit changed, and only there."""

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fedlib.rebuild import artefacts
from fedlib.runs import runner
from fedlib.support.paths import ROOT
from tests.conftest import copied

found = importlib.util.spec_from_file_location(
    "carry_keys", ROOT / "tools" / "carry_keys.py"
)
assert found is not None
assert found.loader is not None
tool = importlib.util.module_from_spec(found)
found.loader.exec_module(tool)

NAME = "fedpg/fig3"  # one run of FedAvg


def checkout(home: Path, old: str, new: str) -> Path:
    """Return a folder with what an artefact needs, its code edited everywhere."""
    copied(home)
    for file in (f"notebooks/papers/{NAME}.ipynb", f"params/quick/{NAME}.yaml"):
        (home / file).parent.mkdir(parents=True)
        shutil.copy(ROOT / file, home / file)
    edited = 0
    for path in (home / "fedlib").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if old in text:
            edited += 1
            path.write_text(text.replace(old, new), encoding="utf-8")
    assert edited
    return home


@pytest.fixture
def once(monkeypatch):
    """Ask each question once: a process that imports the library costs seconds."""
    ask, told = tool.ask, {}

    def answer(code: str, home: Path, given: Any, limit: float | None = None) -> Any:
        asked = json.dumps([code, str(home), given])
        if asked not in told:
            told[asked] = ask(code, home, given, limit)
        return told[asked]

    monkeypatch.setattr(tool, "ask", answer)


@pytest.mark.slow  # processes that import the library
def test_a_run_is_carried_over_where_the_old_code_gives_the_same_bits(
    tmp_path, own_cache, once, capsys, monkeypatch
):
    monkeypatch.setenv("FEDLIB_KERNEL", "torch")  # a copy would compile all of numba's
    there = checkout(tmp_path / "old", "client_weights", "weights_of_clients")
    spec = artefacts.prepare(NAME, "quick").specs[0]
    ((*_, before),) = tool.ask(tool.SPECS, there, [[NAME, "quick"]])
    after = runner.key(spec)
    assert before != after
    kept = own_cache / "runs" / before
    runner.run(spec)
    runner.folder(spec).rename(kept)  # as the old code would have stored it
    record = {"artefact": NAME, "preset": "quick", "runs": []}
    for key in (before, "0" * 20):
        row = {"key": key, "method": spec.method, "seed": spec.seed}
        record["runs"].append(row | {"dataset": spec.dataset})
    file = tmp_path / "figures" / "fig3.json"
    file.parent.mkdir()
    file.write_text(json.dumps(record))
    arguments = [str(there), str(file.parent), "--rounds", "2", "--write"]
    assert tool.main(arguments) == 1  # one key is nobody's
    printed = capsys.readouterr().out
    assert f"{'0' * 20} -> left: fedavg digits" in printed
    found = json.loads(file.read_text())["runs"]
    assert [run["key"] for run in found] == [after, "0" * 20]
    assert runner.pending([spec]) == []
    assert "same bits in 2 rounds" in printed
    assert kept.exists()


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ([[6, "a"], [6, "b"]], "OTHER NUMBERS"),
        ([[6, "a"], [3, "a"]], "OTHER NUMBERS"),
        ([RuntimeError("KeyError: 'x'")], "KeyError: 'x'"),
        ([subprocess.TimeoutExpired("python", 5)], "longer than 5 s"),
    ],
)
def test_a_run_with_other_numbers_or_none_stays(monkeypatch, told, words):
    answers = iter(told)

    def ask(*_):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(tool, "ask", ask)
    assert tool.proven({}, ROOT, 2, 5) == (False, words)
