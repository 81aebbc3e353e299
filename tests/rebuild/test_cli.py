"""The command: what it prints last, how it exits, and that errors are one line."""

import signal

import pandas as pd
import papermill
import pytest
from click.testing import CliRunner, Result

from fedlib import data, registry
from fedlib.cli import main
from fedlib.draw import tables
from fedlib.rebuild import make, notebook
from fedlib.runs import many
from fedlib.support import paths
from tests.rebuild.test_make import (  # noqa: F401
    PARAMETERS,
    kernels,
    project,
    write_notebook,
)


def fedlib(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def last(result: Result) -> str:
    return result.output.splitlines()[-1]


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_what_stops_a_rebuild_says_how_to_go_on_and_has_a_status_of_its_own(
    project,  # noqa: F811
    monkeypatch,
    number,
    status,
):
    """SIGTERM, which a scheduler sends, ended it without a word."""

    def stopped(*_, **settings):
        assert settings["cluster"] == "tcp://there:1"
        signal.raise_signal(number)

    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    monkeypatch.setattr(many, "reach", lambda cluster: None)
    write_notebook("toy/a")
    monkeypatch.setattr(make, "rebuild", stopped)
    result = fedlib("rebuild", "--cluster", "tcp://there:1")
    assert signal.signal(signal.SIGTERM, before) == signal.SIG_IGN
    assert result.exit_code == status
    assert "Stopped. Finished runs are kept" in result.output
    assert "goes on from there" in result.output


def test_a_cluster_that_does_not_answer_stops_before_the_first_artefact(
    project,  # noqa: F811
    monkeypatch,
):
    def refuse(cluster):
        raise ValueError(f"cluster: got {cluster!r}")

    write_notebook("toy/a")
    monkeypatch.setattr(many, "reach", refuse)
    result = fedlib("rebuild", "--cluster", "nowhere")
    assert (result.exit_code, result.output) == (2, "Error: cluster: got 'nowhere'\n")
    assert fedlib("rebuild", "--cluster", "nowhere", "--dry-run").exit_code == 0


def test_rebuild_twice(project, kernels):  # noqa: F811
    write_notebook("toy/a")
    write_notebook("toy/b")
    first = fedlib("rebuild", "--preset", "quick")
    assert (first.exit_code, last(first)) == (0, "built 2, current 0, failed 0")
    second = fedlib("rebuild")
    assert (second.exit_code, last(second)) == (0, "built 0, current 2, failed 0")
    assert kernels == ["a", "b"]
    changed = fedlib("rebuild", "toy/a", "-p", "rounds", "5")
    assert "toy/a: parameter rounds: 20 -> 5" in changed.output
    assert last(changed) == "built 1, current 0, failed 0"


def test_one_failure_exits_1(project, kernels, monkeypatch):  # noqa: F811
    write_notebook("toy/a")
    write_notebook("toy/b")
    execute = papermill.execute_notebook

    def broken(notebook, *arguments, **settings):
        if notebook.stem == "a":
            raise RuntimeError("Kernel died")
        execute(notebook, *arguments, **settings)

    monkeypatch.setattr(papermill, "execute_notebook", broken)
    result = fedlib("rebuild", "toy")
    assert (result.exit_code, last(result)) == (1, "built 1, current 0, failed 1")
    assert "toy/a: failed: RuntimeError: Kernel died" in result.output


def test_dry_run(project, kernels):  # noqa: F811
    write_notebook("toy/a")
    result = fedlib("rebuild", "--dry-run")
    assert result.output.splitlines() == [
        "toy/a: never built; no run is kept, its notebook computes what it shows",
        "would build 1",
        "built 0, current 0, failed 0",
    ]
    assert result.exit_code == 0
    assert kernels == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rebuild", "-p", "ruonds", "5"], "did you mean 'rounds'"),
        (
            ["rebuild", "-p", "rounds", "-1.5"],
            "got '-1.5', expected an integer",
        ),
        (["rebuild", "toy/aa"], "did you mean 'toy/a'"),
        (["rebuild", "--preset", "papr"], "did you mean 'paper'"),
        (["estimate", "-p", "ruonds", "5"], "did you mean 'rounds'"),
        (["data", "check", "mnits"], "mnits"),
        (["rebuild", "--jobs", "0"], "0 is not in the range"),
    ],
)
def test_usage_errors_exit_2_without_traceback(
    project,  # noqa: F811
    kernels,  # noqa: F811
    arguments,
    message,
):
    write_notebook("toy/a")
    result = fedlib(*arguments)
    assert result.exit_code == 2
    assert message in last(result)
    assert last(result).startswith("Error: ")
    assert "Traceback" not in result.output
    assert kernels == []


def test_missing_tag_stops(project, kernels):  # noqa: F811
    """A19: papermill would go on with the defaults."""
    write_notebook("toy/a")
    path = paths.NOTEBOOKS / "papers/toy/a.ipynb"
    path.write_text(path.read_text().replace('"parameters"', '"other"'))
    result = fedlib("rebuild")
    assert result.exit_code == 2
    assert last(result) == (
        "Error: a.ipynb: got 0 cells tagged 'parameters', expected one"
    )


def test_show_prints_the_table_and_the_files(project, monkeypatch):  # noqa: F811
    for name in ("toy/a", "toy/a_long", "toy/fig"):
        write_notebook(name)
    folder = project / "figures" / "quick" / "toy"
    out = notebook.artefact("toy", "a", "quick")
    drawn = pd.DataFrame({"method": ["a|b", "c"], "mean": [0.5, 10.25], "p": [0.1, 2]})
    drawn["sd"] = 0.1
    out.table(drawn, values=["mean", "p"], sd={"mean": "sd"}, best=["mean"], digits=1)
    out.table(drawn.head(1), "fair")
    notebook.artefact("toy", "fig", "quick").table(drawn[["method"]], "facts")
    (folder / "a_long.csv").touch()
    monkeypatch.chdir(project)
    result = fedlib("show", "a", "fig")
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "a",
        "",
        "method            mean    p",
        "a|b        _0.5 ± 0.1_  0.1",
        "c       **10.2 ± 0.1**  2.0",
        "",
        tables.MARKS,
        "",
        "figures/quick/toy/a.{csv,md,tex}",
        "figures/quick/toy/a_fair.{csv,md,tex}",
        "",
        "fig_facts",
        "",
        "method",
        "a|b",
        "c",
        "",
        "figures/quick/toy/fig_facts.{csv,md,tex}",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["toy/aa"], "did you mean 'toy/a'"),
        (["a", "--preset", "qiuck"], "did you mean 'quick'"),
        (["a"], "toy/a: got no file at quick; expected `fedlib rebuild toy/a "),
        ([], "Missing argument 'NAMES...'"),
    ],
)
def test_show_says_what_is_wrong(project, arguments, message):  # noqa: F811
    write_notebook("toy/a")
    result = fedlib("show", *arguments)
    assert result.exit_code == 2
    assert message in last(result)


def test_estimate(project):  # noqa: F811
    write_notebook("toy/a")
    write_notebook("toy/b", parameters=PARAMETERS)
    result = fedlib("estimate")
    assert result.exit_code == 0
    assert result.stderr.splitlines() == ["1 of 2: toy/a", "2 of 2: toy/b"]
    assert [line.split()[0] for line in result.stdout.splitlines()[:3]] == [
        "name",
        "toy/a",
        "toy/b",
    ]
    assert result.stdout.splitlines()[1].split()[-2:] == ["?", "?"]  # keeps no runs
    assert result.stdout.splitlines()[-1] == "0 runs missing, about 0 s"


def test_lists(project, monkeypatch):  # noqa: F811
    write_notebook("toy/a")
    assert fedlib("list", "artefacts").output == "toy/a  A table\n"
    shown = fedlib("list", "artefacts", "--preset", "quick").output
    assert shown.split() == ["toy/a", "never", "?", "A", "table"]
    assert fedlib("list", "notebooks").output == "papers/toy/a.ipynb\n"
    shown = fedlib("list", "methods").output.splitlines()
    assert [line.split()[0] for line in shown] == list(registry.METHODS)
    monkeypatch.delenv("FEDLIB_DATA", raising=False)
    shown = fedlib("list", "datasets").output.splitlines()
    assert [line.split()[0] for line in shown] == list(data.DATASETS)
    assert shown[0] == "digits  (digits; built in)"
    assert "mnist  (MNIST; fedlib data fetch mnist)" in shown
    assert "imagenet  (ImageNet; fedlib data guide imagenet)" in shown
    (paths.data_dirs()[0] / "imagenet").mkdir(parents=True)
    assert "imagenet  (ImageNet; here)" in fedlib("list", "datasets").output


def test_an_installed_fedlib_says_that_it_has_no_notebooks(project):  # noqa: F811
    for words in ("rebuild", "estimate", "show a", "list artefacts", "list notebooks"):
        result = fedlib(*words.split())
        assert result.exit_code == 2, words
        assert result.output.startswith("Error: no notebooks here: ")


def test_data(monkeypatch):
    monkeypatch.delenv("FEDLIB_DATA", raising=False)
    monkeypatch.setenv("FEDLIB_OFFLINE", "1")
    assert last(fedlib("data", "check", "digits")) == "digits: ok"
    shown = fedlib("data", "status").output
    assert "fashion" in shown
    assert max(map(len, shown.splitlines()[:-1])) <= 100  # the last names folders
    assert str(paths.data_dirs()[0]) in shown
    for command in ("fetch", "check"):
        result = fedlib("data", command, "mnist")
        assert result.exit_code == 1
        assert result.output.startswith("Error: MNIST is not here")
        assert result.output.count("Error") == 1
        assert "Traceback" not in result.output


def test_doctor(tmp_path, monkeypatch):
    result = fedlib("doctor")
    assert (result.exit_code, last(result)) == (0, "all well")
    for word in ("python", "torch", "gpu", "threads", "writable"):
        assert word in result.output
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("FEDLIB_CACHE", str(blocked / "cache"))
    result = fedlib("doctor")
    assert result.exit_code == 1
    assert last(result).startswith("cache: ")


def test_what_is_your_own_is_known_to_every_command(tmp_path, monkeypatch):
    (tmp_path / "mine_too.py").write_text("raise SystemExit('imported')", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("FEDLIB_OWN", "mine_too")
    assert "imported" in str(fedlib("list", "methods").exception)
    monkeypatch.setenv("FEDLIB_OWN", "nothere")
    refused = fedlib("list", "methods")
    assert refused.exit_code == 2
    assert "FEDLIB_OWN: got 'nothere'" in refused.output
