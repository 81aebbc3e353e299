"""The project's own files agree with each other."""

import itertools
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import fedlib
from fedlib.support import paths
from fedlib.support.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))


def called(text: str) -> set[str]:
    """Return the Makefile targets that a text calls in code."""
    found: set[str] = set()
    for line in re.findall(r"\bmake ((?:[a-z]+ ?)+)", text):
        found |= set(line.split())
    return found


def made(targets: set[str]) -> set[str]:
    """Return targets with those that ``test`` stands for."""
    (parts,) = re.findall(r"^test: (.*)$", MAKEFILE, re.MULTILINE)
    return targets | set(parts.split()) if "test" in targets else targets


def test_versions_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert PROJECT["version"] == fedlib.__version__ == citation["version"]
    assert citation["preferred-citation"]["version"] == citation["version"]


def test_dependencies_are_ranges():
    extras = PROJECT["optional-dependencies"].values()
    needs = [*PROJECT["dependencies"], *itertools.chain(*extras)]
    assert all(re.fullmatch(r"[a-z0-9-]+>=[0-9.]+", need) for need in needs)


def test_the_lock_is_of_these_ranges():
    """``uv lock`` renews it, in seconds."""
    packages = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    (own,) = [package for package in packages if package["name"] == "fedlib"]
    locked = {
        f"{each['name']}{each['specifier']} {each.get('marker', '')}".strip()
        for each in own["metadata"]["requires-dist"]
    }
    wanted = set(PROJECT["dependencies"])
    for extra, needs in PROJECT["optional-dependencies"].items():
        wanted |= {f"{need} extra == '{extra}'" for need in needs}
    assert locked == wanted


def test_makefile_asks_for_the_same_python():
    (floor,) = re.findall(r"version_info < \((\d+), (\d+)\)", MAKEFILE)
    assert PROJECT["requires-python"] == ">=" + ".".join(floor)


def test_classifiers_name_the_pythons_that_ci_tries():
    ci = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    pythons = ci["jobs"]["tests"]["strategy"]["matrix"]["python"]
    named = [
        c.rpartition(" ")[2] for c in PROJECT["classifiers"] if ":: Python ::" in c
    ]
    assert named == pythons


def test_conda_installs_the_same_package():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())
    (pip,) = [part for part in conda["dependencies"] if isinstance(part, dict)]
    assert pip == {"pip": ["-e .[dev]"]}
    python = next(p for p in conda["dependencies"] if str(p).startswith("python"))
    assert python.removeprefix("python") == PROJECT["requires-python"]


def test_a_wheel_brings_what_rebuild_reads(tmp_path):
    """Installed, and called in a folder of its user, the command finds all of it."""
    pytest.importorskip("setuptools", minversion="77")
    build = ["egg_info", "--egg-base", tmp_path, "build_py", "--build-lib", tmp_path]
    command = [sys.executable, ROOT / "setup.py", "-q", *build]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    shipped = tmp_path / "fedlib" / "shipped"
    files = {p.relative_to(shipped).as_posix() for p in shipped.rglob("*.*")}
    tracked = subprocess.run(
        ["git", "ls-files", "notebooks/papers", "params", "results"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert set(tracked) <= files

    here = tmp_path / "of a user"
    here.mkdir()
    given = {n: v for n, v in os.environ.items() if not n.startswith("FEDLIB_")}
    asked = "from fedlib.support import paths as p; print(*p.artefact_names()); "
    asked += "print(p.PARAMS, p.figures_dir(), p.results_dir(), sep='\\n')"
    answer = subprocess.run(
        [sys.executable, "-c", asked],
        env=given | {"PYTHONPATH": str(tmp_path)},
        cwd=here,
        capture_output=True,
        text=True,
        check=True,
    )
    names, *places = answer.stdout.splitlines()
    assert names.split() == paths.artefact_names()
    expected = [shipped / "params", here / "figures", shipped / "results"]
    assert [Path(place) for place in places] == expected


@pytest.mark.parametrize("name", [".ci/run", ".github/workflows/ci.yml"])
def test_ci_calls_makefile_targets(name):
    """Both run all that ``make ci`` runs, and no step is switched off."""
    (steps,) = re.findall(r"^ci: (.*)$", MAKEFILE, re.MULTILINE)
    text = (ROOT / name).read_text()
    assert made(set(steps.split())) - {"test", "setup"} <= made(called(text)) <= TARGETS
    assert not re.search(r"if: false|continue-on-error|\|\| true", text)


@pytest.mark.parametrize(
    ("second", "passes"),
    [
        ("built 0, current 3, failed 0", True),
        ("built 1, current 2, failed 0", False),
        ("built 0, current 1, failed 2", False),
        ("built 0, current 0, failed 0", False),
    ],
)
def test_a_second_rebuild_must_do_nothing(tmp_path, second, passes):
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "fedlib"
    command.write_text(f"#!/bin/sh\necho '{second}'\n")
    command.chmod(0o755)
    (tmp_path / ".installed").touch()
    done = subprocess.run(
        ["make", "--silent", "twice", f"VENV={tmp_path}", "PYTHON=false"],
        cwd=ROOT,
        check=False,
    )
    assert (done.returncode == 0) == passes


def test_precommit_is_ci_lint():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    entries = [hook["entry"] for repo in config["repos"] for hook in repo["hooks"]]
    assert entries == ["make lint", "make types"]


def test_lint_has_rules_of_security_for_all_but_tests():
    lint = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert "S" in lint["select"]
    off = [
        files
        for files, rules in lint["per-file-ignores"].items()
        if any(rule.startswith("S") for rule in rules)
    ]
    assert off == ["tests/*"]


def test_readme_commands_exist():
    readme = (ROOT / "README.md").read_text()
    code = "\n".join(re.findall(r"```sh\n(.*?)```", readme, re.DOTALL))
    assert {"quickstart", "test"} <= called(code) <= TARGETS
    for folder in re.findall(r"^\| `([a-z.]+)/` \|", readme, re.MULTILINE):
        assert (ROOT / folder).is_dir(), folder


def test_readme_is_complete():
    """Its pictures and links are there, and no mark waits for a number."""
    readme = (ROOT / "README.md").read_text()
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)", readme)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
    assert len(readme.splitlines()) <= 150
    assert re.findall(r"@[A-Z]+@", readme) == []


def test_the_page_of_artefacts_names_all_of_them():
    page = (ROOT / "docs" / "artefacts.md").read_text()
    links = re.findall(r"\]\(\.\./([^)\s]+)", page)
    assert [link for link in links if not (ROOT / link).exists()] == []
    for name in paths.artefact_names():
        assert f"| [{name}](../notebooks/papers/{name}.ipynb) | " in page


def test_no_absolute_path_is_tracked():
    """Paths of a person's machine have no place in the project."""
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    pattern = re.compile(r"(?:^|[\s\"'=(])/(?:home|root|Users|work|tmp|mnt)/\w")
    found = []
    for name in tracked:
        if name.endswith((".png", ".pdf", ".zst")) or not (ROOT / name).exists():
            continue
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
            if pattern.search(line):
                found.append(f"{name}:{number}")
    assert found == []
