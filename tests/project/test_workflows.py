"""Workflows run the Makefile's targets, and no stranger's code on our GPU."""

import re

import pytest
import yaml

from fedlib.support.paths import ROOT
from tests.project.test_packaging import MAKEFILE, TARGETS

FOLDER = ROOT / ".github" / "workflows"
FILES = ("ci.yml", "docs.yml", "gpu.yml", "release.yml")
# Jobs that only publish what another job made, and what they may do for it.
PUBLISH = {
    "docs.yml": {"pages": "write", "id-token": "write"},
    "release.yml": {"id-token": "write"},
}
TEXT = {name: (FOLDER / name).read_text() for name in FILES}
WORKFLOWS = {name: yaml.safe_load(text) for name, text in TEXT.items()}


def triggers(name: str) -> dict:
    return WORKFLOWS[name][True]  # YAML 1.1 reads the key "on" as a truth value


def commands(job: dict) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def targets(name: str) -> dict[str, list[str]]:
    """Return the targets that each job makes, settings such as DEVICE=cuda left out."""
    made: dict[str, list[str]] = {}
    for job, content in WORKFLOWS[name]["jobs"].items():
        words = [word for c in commands(content) for word in c.split()[1:]]
        made[job] = [word for word in words if "=" not in word]
    return made


def test_no_other_workflow():
    assert sorted(path.name for path in FOLDER.iterdir()) == list(FILES)


@pytest.mark.parametrize("name", FILES)
def test_every_command_is_a_target_of_the_makefile(name):
    for called, job in WORKFLOWS[name]["jobs"].items():
        assert bool(commands(job)) == (called != "publish")
        for command in commands(job):
            assert re.fullmatch(r"make [a-z]+( [a-z]+| [A-Z]+=[a-z0-9]+)*", command)
    assert {target for job in targets(name).values() for target in job} <= TARGETS


@pytest.mark.parametrize("name", FILES)
def test_nothing_is_switched_off(name):
    assert "continue-on-error" not in TEXT[name]
    for job in WORKFLOWS[name]["jobs"].values():
        assert job["timeout-minutes"] <= 120
        for step in job["steps"]:
            assert step.get("if", "${{ !cancelled() }}") == "${{ !cancelled() }}"


@pytest.mark.parametrize("name", FILES)
def test_actions_are_pinned_and_leave_no_credentials(name):
    """A tag can be moved to other code; a hash cannot."""
    for job in WORKFLOWS[name]["jobs"].values():
        used = [step for step in job["steps"] if "uses" in step]
        assert used
        for step in used:
            owner = r"actions/|pypa/" if name == "release.yml" else r"actions/"
            assert re.fullmatch(rf"({owner})[a-z-]+@[0-9a-f]{{40}}", step["uses"])
            if step["uses"].startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False
    assert len(re.findall(r"@[0-9a-f]{40} # v[0-9.]+\n", TEXT[name])) == (
        TEXT[name].count("uses:")
    )


@pytest.mark.parametrize("name", FILES)
def test_workflows_only_read_and_are_superseded(name):
    assert WORKFLOWS[name]["permissions"] == {"contents": "read"}
    for called, job in WORKFLOWS[name]["jobs"].items():
        wanted = PUBLISH[name] if called == "publish" else None
        assert job.get("permissions") == wanted
    assert WORKFLOWS[name]["concurrency"]["cancel-in-progress"] is True
    assert "secrets" not in TEXT[name]


def test_ci_does_what_it_should():
    assert targets("ci.yml") == {
        "lint": ["lint", "types", "actionlint"],
        "tests": ["both"],
        "lowest": ["both"],
        "portable": ["portable"],
        "wheel": ["wheel"],
        "nbval": ["nbval"],
        "browser": ["browser"],
        "papers": ["rebuild", "twice"],
    }
    assert set(triggers("ci.yml")) == {"push", "pull_request", "schedule"}
    jobs = WORKFLOWS["ci.yml"]["jobs"]
    matrix = jobs["tests"]["strategy"]["matrix"]
    assert matrix["python"] == ["3.11", "3.12", "3.13", "3.14"]
    assert jobs["portable"]["strategy"]["matrix"]["os"] == [
        "windows-latest",
        "macos-latest",
    ]
    assert all("if" not in job for job in jobs.values())


@pytest.mark.parametrize("name", ["ci.yml", "docs.yml", "release.yml"])
def test_no_job_on_linux_pulls_cuda(name):
    """LOWEST=1 means torch for CPUs; Windows and macOS have no other."""
    for job in WORKFLOWS[name]["jobs"].values():
        for command in commands(job):
            if "actionlint" not in command and "os }}" not in job["runs-on"]:
                assert re.search(r" (TORCH=cpu|LOWEST=1)$", command)


def test_only_main_and_tags_are_published():
    """A pull request builds the site and the wheel, and publishes neither."""
    site = WORKFLOWS["docs.yml"]["jobs"]["publish"]
    assert site["if"] == "github.event_name == 'push'"
    assert triggers("docs.yml") == {
        "push": {"branches": ["main"]},
        "pull_request": None,
    }
    assert triggers("release.yml") == {"push": {"tags": ["v*"]}}
    for name in PUBLISH:
        (before,) = set(WORKFLOWS[name]["jobs"]) - {"publish"}
        assert WORKFLOWS[name]["jobs"]["publish"]["needs"] == before
    assert targets("docs.yml")["build"] == ["docs"]
    assert targets("release.yml")["wheel"] == ["wheel"]


def test_gpu_does_what_it_should():
    assert targets("gpu.yml") == {"gpu": ["gpu", "nbval", "golden"]}
    (job,) = WORKFLOWS["gpu.yml"]["jobs"].values()
    assert "make nbval DEVICE=cuda" in commands(job)
    assert job["runs-on"] == ["self-hosted", "${{ vars.GPU_LABEL || 'gpu' }}"]


def test_no_fork_runs_on_our_gpu():
    assert "pull_request_target" not in "".join(TEXT.values())
    assert triggers("gpu.yml") == {
        "workflow_dispatch": None,
        "schedule": [{"cron": "23 2 * * *"}],
        "pull_request": {"types": ["labeled"]},
    }
    (job,) = WORKFLOWS["gpu.yml"]["jobs"].values()
    assert " ".join(job["if"].split()) == (
        "github.event_name != 'pull_request' || (github.event.label.name == 'gpu' && "
        "github.event.pull_request.head.repo.full_name == github.repository)"
    )


def test_gpu_targets_need_a_gpu():
    """Marked tests skip where there is none, so the targets ask first."""
    for target in ("gpu", "golden"):
        first = f"\n{target}: setup\n\tFEDLIB_DEVICE=cuda $(BIN)/fedlib doctor\n"
        assert first in MAKEFILE


def test_ci_run_checks_the_workflows():
    assert "\nstep make actionlint\n" in (ROOT / ".ci" / "run").read_text()
