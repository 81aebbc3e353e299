"""Runs are carried over to new keys where no bit changed, and only there."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedlib.rebuild import artefacts
from fedlib.runs import runner
from fedlib.support.paths import ROOT

found = importlib.util.spec_from_file_location(
    "carry_keys", ROOT / "tools" / "carry_keys.py"
)
assert found is not None
assert found.loader is not None
tool = importlib.util.module_from_spec(found)
found.loader.exec_module(tool)

NAME = "fedpg/fig3"  # one run of FedAvg
KEY = """
from fedlib.rebuild import artefacts
from fedlib.runs import runner
print(runner.key(artefacts.prepare("fedpg/fig3", "quick").specs[0]))
"""


def checkout(home: Path, old: str, new: str) -> Path:
    """Return a folder with what an artefact needs, its code edited everywhere."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "fedlib", home / "fedlib", ignore=ignored)
    for file in (f"notebooks/papers/{NAME}.ipynb", f"params/quick/{NAME}.yaml"):
        (home / file).parent.mkdir(parents=True)
        shutil.copy(ROOT / file, home / file)
    edited = 0
    for path in (home / "fedlib").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        edited += text.count(old)
        path.write_text(text.replace(old, new), encoding="utf-8")
    assert edited
    return home


def carry(old: Path, figures: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "tools" / "carry_keys.py")]
    command += [str(old), str(figures), "--rounds", "2", "--write"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow  # processes that import the library
def test_a_run_is_carried_over_where_the_old_code_gives_the_same_bits(
    tmp_path, own_cache
):
    there = checkout(tmp_path / "old", "client_weights", "weights_of_clients")
    command = [sys.executable, "-c", KEY]
    printed = subprocess.run(
        command, cwd=there, capture_output=True, text=True, check=True
    )
    before, spec = printed.stdout.strip(), artefacts.prepare(NAME, "quick").specs[0]
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
    done = carry(there, file.parent)
    assert done.returncode == 1, done.stderr  # one key is nobody's
    assert f"{'0' * 20} -> left: fedavg digits" in done.stdout
    found = json.loads(file.read_text())["runs"]
    assert [run["key"] for run in found] == [after, "0" * 20]
    assert runner.pending([spec]) == []
    assert "same bits in 2 rounds" in done.stdout
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
