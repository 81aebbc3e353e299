"""The container, the devcontainer and Binder install the lock, with torch for CPUs."""

import json
import os
import re
import tomllib

import yaml

from fedlib.support.paths import ROOT
from tests.project.test_packaging import MAKEFILE, PROJECT

SETUP = "make setup LOCKED=1 TORCH=cpu"
FLOOR = tuple(map(int, PROJECT["requires-python"].removeprefix(">=").split(".")))


def version(text: str) -> tuple[int, ...]:
    (found,) = re.findall(r"\b3\.\d+", text)
    return tuple(map(int, found.split(".")))


def test_the_container_installs_the_lock_as_no_root():
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    (base,) = [line for line in lines if line.startswith("FROM ")]
    assert version(base) >= FLOOR
    installs = lines.index(f"RUN {SETUP}")
    assert lines.index("USER 1000") < installs
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert {".git", ".venv", "build"} <= set(ignored)


def test_the_devcontainer_installs_the_lock():
    given = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert version(given["image"]) >= FLOOR
    assert given["postCreateCommand"] == SETUP


def test_binder_installs_the_lock_into_its_own_environment():
    given = yaml.safe_load((ROOT / "binder" / "environment.yml").read_text())
    (python,) = [d for d in given["dependencies"] if d.startswith("python")]
    assert version(python) >= FLOOR
    script = ROOT / "binder" / "postBuild"
    assert f'\n{SETUP} VENV="$NB_PYTHON_PREFIX"\n' in script.read_text()
    assert os.access(script, os.X_OK)


def test_without_cuda_means_all_that_only_torch_for_gpus_needs():
    """What torch needs on Linux alone, and what that needs, and nothing else."""
    (left,) = re.findall(r"^CUDA := (.*)$", MAKEFILE, re.MULTILINE)
    packages = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    names = {package["name"] for package in packages}
    dropped = {n for n in names if n.startswith(tuple(left.split(r"\|")))}
    needs = {p["name"]: p.get("dependencies", []) for p in packages}
    found = {d["name"] for d in needs["torch"] if "linux" in d.get("marker", "")}
    extras = [
        each for p in packages for each in p.get("optional-dependencies", {}).items()
    ]
    reached = set(found)
    while found:
        found = {d["name"] for n in found for d in needs[n]} - reached
        reached |= found
    for _, parts in extras:  # cuda-toolkit's parts are extras of it
        reached |= {d["name"] for d in parts if "nvidia" in d["name"]}
    assert dropped == reached
