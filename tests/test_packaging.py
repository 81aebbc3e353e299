"""The project's own files agree with each other."""

import re
import subprocess
import tomllib

import pytest
import yaml

import fedlib
from fedlib.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))


def called(text: str) -> set[str]:
    """Return the Makefile targets that a text calls in code."""
    found: set[str] = set()
    for line in re.findall(r"\bmake ((?:[a-z]+ ?)+)", text):
        found |= set(line.split())
    return found


def test_versions_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert PROJECT["version"] == fedlib.__version__ == citation["version"]


def test_dependencies_are_ranges():
    assert all(">=" in need and "==" not in need for need in PROJECT["dependencies"])


def test_conda_installs_the_same_package():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())
    (pip,) = [part for part in conda["dependencies"] if isinstance(part, dict)]
    assert pip == {"pip": ["-e .[dev]"]}
    python = next(p for p in conda["dependencies"] if str(p).startswith("python"))
    assert python.removeprefix("python") == PROJECT["requires-python"]


@pytest.mark.parametrize("name", [".ci/run", ".github/workflows/ci.yml"])
def test_ci_calls_makefile_targets(name):
    targets = called((ROOT / name).read_text())
    assert {"test", "lint", "types"} <= targets <= TARGETS


def test_precommit_is_ci_lint():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    entries = [hook["entry"] for repo in config["repos"] for hook in repo["hooks"]]
    assert entries == ["make lint", "make types"]


def test_readme_commands_exist():
    readme = (ROOT / "README.md").read_text()
    code = "\n".join(re.findall(r"```sh\n(.*?)```", readme, re.DOTALL))
    assert {"quickstart", "test"} <= called(code) <= TARGETS
    for folder in re.findall(r"^\| `([a-z.]+)/` \|", readme, re.MULTILINE):
        assert (ROOT / folder).is_dir(), folder


def test_no_absolute_path_is_tracked():
    """Paths of a person's machine have no place in the project."""
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    pattern = re.compile(r"(?:^|[\s\"'=(])/(?:home|root|Users|work|tmp|mnt)/\w")
    found = []
    for name in tracked:
        if name.endswith((".png", ".pdf")) or not (ROOT / name).exists():
            continue
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
            if pattern.search(line):
                found.append(f"{name}:{number}")
    assert found == []
