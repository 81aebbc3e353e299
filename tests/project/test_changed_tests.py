"""Which tests ``make fast`` runs."""

import importlib.util
import subprocess

import pytest

from fedlib.support.paths import ROOT

found = importlib.util.spec_from_file_location(
    "changed_tests", ROOT / "tools" / "changed_tests.py"
)
assert found is not None
assert found.loader is not None
tool = importlib.util.module_from_spec(found)
found.loader.exec_module(tool)

TESTS = {
    "tests/test_a.py": "from fedlib.core import protos\nfrom fedlib.data import images",
    "tests/test_b.py": "import fedlib.methods.gfpl as g\nfrom tests.on_disk import idx",
    "tests/laws/test_c.py": "CODE = 'import fedlib.core.protos'\nKNOBS = {'gfpl': 1}",
}


@pytest.mark.parametrize(
    ("changed", "files", "names"),
    [
        ("tests/test_b.py", "b", "test_b.py"),
        ("tests/on_disk.py", "b", "test_b.py"),
        ("fedlib/core/protos.py", "ca", "test_a.py or test_c.py"),
        ("fedlib/data/images.py", "a", "test_a.py"),
        ("fedlib/data/__init__.py", "a", "test_a.py"),
        ("fedlib/methods/gfpl.py", "cb", "gfpl or test_b.py"),
        ("fedlib/baselines/gfpl.py", "cb", "gfpl"),  # no test imports it
        ("fedlib/core/prot.py", "ca", "prot"),
        ("fedlib/others.py", "", "others"),
    ],
)
def test_a_change_runs_what_names_it(changed, files, names):
    full = {name[-4]: name for name in TESTS}
    assert tool.wanted({changed}, TESTS) == ([full[f] for f in files], names)


def test_changes_are_committed_edited_and_new(tmp_path, monkeypatch):
    def git(*arguments: str) -> None:
        name = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", *name, *arguments], cwd=tmp_path, check=True)

    monkeypatch.setattr(tool, "ROOT", tmp_path)
    git("init", "-q", "-b", "main")
    for name in ("kept", "committed", "edited", "gone", "text"):
        (tmp_path / f"{name}.py").touch()
    git("add", ".")
    git("commit", "-q", "-m", "first")
    assert tool.changed() == set()
    git("checkout", "-q", "-b", "other")
    (tmp_path / "committed.py").write_text("1")
    git("commit", "-q", "-a", "-m", "second")
    (tmp_path / "edited.py").write_text("1")
    (tmp_path / "gone.py").unlink()
    (tmp_path / "new.py").touch()
    (tmp_path / "new.md").touch()
    assert tool.changed() == {"committed.py", "edited.py", "new.py"}
