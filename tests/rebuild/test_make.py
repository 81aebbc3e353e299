"""Rebuilding: what is stale and why, one failure among others, nothing done twice."""

import json
import math
import sys
import time
from pathlib import Path

import nbformat
import papermill
import pytest
import yaml

from fedlib import data, papers, registry
from fedlib.data import DataError
from fedlib.papers.ours import special
from fedlib.rebuild import artefacts, costs, execute, make, pace, staleness
from fedlib.rebuild.kernels import own_kernel
from fedlib.rebuild.progress import Progress
from fedlib.runs import address, many, published, runner, shapes, timings
from fedlib.runs.spec import SettingError, Spec
from fedlib.support import paths
from fedlib.support.sources import code

WRITE = """
import os, pathlib
folder = pathlib.Path(os.environ["FEDLIB_FIGURES"]) / preset / "toy"
folder.mkdir(parents=True, exist_ok=True)
(folder / "{name}.csv").write_text(f"rounds\\n{{rounds}}\\n")
"""
PARAMETERS = 'preset = "quick"\nrounds = 20  # T\n'


def write_notebook(name: str, *code: str, parameters: str = PARAMETERS) -> None:
    """Write an artefact's notebook and its quick preset."""
    cells = [nbformat.v4.new_markdown_cell("# A table")]
    cells += [nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]})]
    cells += [nbformat.v4.new_code_cell(source) for source in code]
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    path = paths.NOTEBOOKS / "papers" / f"{name}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    preset = paths.PARAMS / "quick" / f"{name}.yaml"
    preset.parent.mkdir(parents=True, exist_ok=True)
    preset.touch()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give an empty project; FEDLIB_CACHE and FEDLIB_FIGURES are set for every test."""
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path / "notebooks")
    monkeypatch.setattr(paths, "PARAMS", tmp_path / "params")
    return tmp_path


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Write the csv in place of a kernel, and list the notebooks that would run."""
    started = []

    def execute(notebook, executed, parameters, **_):
        started.append(notebook.stem)
        folder = artefacts.folder(f"toy/{notebook.stem}", parameters)
        file = paths.figures_dir() / folder / "toy" / f"{notebook.stem}.csv"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        file.write_text(str(parameters))

    monkeypatch.setattr(papermill, "execute_notebook", execute)
    return started


def statuses(outcomes: list[make.Outcome]) -> dict[str, str]:
    return {outcome.name: outcome.status for outcome in outcomes}


def reasons(name: str, **settings) -> list[str]:
    return make.why_stale(name, "quick", settings)


def test_text_in_a_parameter_file_runs_no_program(project):
    """A tuple's text stood unescaped in the cell; the build reported success."""
    parameters = PARAMETERS + "picture = None  # anything\n"
    write_notebook("toy/one", WRITE.format(name="one"), parameters=parameters)
    proof = project / "ran"
    attack = f"""('";open({json.dumps(str(proof))},"w");"',)"""
    file = paths.PARAMS / "quick/toy/one.yaml"
    file.write_text(yaml.safe_dump({"picture": attack}))
    with pytest.raises(SettingError, match="picture: got .* of type tuple; expected"):
        make.rebuild([], "quick")
    file.write_text("")
    with pytest.raises(SettingError, match="picture: got .* of type tuple; expected"):
        make.rebuild([], "quick", overrides={"picture": attack})
    by_hand = artefacts.prepare("toy/one", "quick")
    by_hand.parameters["picture"] = {"a": [(attack,)]}
    with own_kernel(), pytest.raises(SettingError, match="of type tuple"):
        execute._execute(by_hand)
    assert not proof.exists()


@pytest.mark.parametrize("few", [0, 3], ids=["forked", "alone"])
def test_real_kernels_failures_collected_and_second_pass_does_nothing(
    project, monkeypatch, few
):
    """Also where kernels are forked with their imports done: they share no more."""
    monkeypatch.setattr("fedlib.rebuild.kernels.FEW", few)
    loaded = "import sys\nloaded = vars(sys)['modules']\n"
    alone = f"assert 'left' not in loaded and ('torch' in loaded) == {few == 0}"
    write_notebook("toy/good", loaded + alone, WRITE.format(name="good"))
    write_notebook("toy/bad", f"{loaded}loaded['left'] = sys", "1 / 0")
    write_notebook("toy/none", "import sys", "print(sys.executable)")
    lines = []
    first = make.rebuild([], "quick", echo=lines.append, overrides={"rounds": "7"})
    assert statuses(first) == {
        "toy/bad": "failed",
        "toy/good": "built",
        "toy/none": "failed",
    }
    bad, good, none = first
    assert bad.error == "code cell 3: ZeroDivisionError: division by zero"
    assert none.error.endswith("wrote no quick/toy/none.* figure or table")
    assert good.reasons == ["never built"]
    assert "toy/bad: failed: " + bad.error in lines
    written = project / "figures" / "quick" / "toy" / "good.csv"
    assert written.read_text() == "rounds\n7\n"
    executed = project / "cache" / "executed" / "quick" / "toy" / "none.ipynb"
    printed = nbformat.read(executed, 4).cells[-1].outputs[0].text.strip()
    assert printed == sys.executable

    def refuse(*_, **__):
        raise AssertionError("a kernel started")

    monkeypatch.setattr(papermill, "execute_notebook", refuse)
    before = written.stat().st_mtime_ns
    (second,) = make.rebuild(["good"], "quick", overrides={"rounds": 7})
    assert second.status == "current"
    assert written.stat().st_mtime_ns == before


@pytest.mark.slow
def test_a_dead_kernel_a_timeout_and_an_unknown_magic_name_the_cell(
    project, monkeypatch
):
    monkeypatch.setattr(execute, "CELL_SECONDS", 20)
    write_notebook("toy/dead", "import os", "os.kill(os.getpid(), 9)", "2")
    write_notebook("toy/late", "import time", "time.sleep(900)", "2")
    write_notebook("toy/magic", "1", "%unheard of", WRITE.format(name="magic"))
    dead, late, magic = make.rebuild([], "quick", jobs=1)
    assert dead.error == (
        "code cell 3: DeadKernelError: the kernel died, killed or out of memory"
    )
    assert late.error == "code cell 3: CellTimeoutError: took longer than 20 s"
    assert magic.error.startswith("code cell 3: UsageError: Line magic function")
    for name in ("dead", "late", "magic"):
        file = project / "cache" / "executed" / "quick" / "toy" / f"{name}.ipynb"
        kept = nbformat.read(file, 4)
        assert kept.metadata.papermill.exception
        told = [cell.metadata.get("papermill", {}) for cell in kept.cells]
        marks = [mark.get("status") for mark in told]
        assert marks.count("failed") == 1
        assert "running" not in marks


def test_a_real_kernel_reads_the_parameters_that_were_injected(project):
    told = "from fedlib import notebook\nrounds_told = notebook.settings()\n"
    keep = WRITE.replace("rounds\\n{{rounds}}", "{{rounds_told}}").format(name="told")
    write_notebook("toy/told", told, keep)
    (outcome,) = make.rebuild(["told"], "quick", overrides={"rounds": "7"})
    assert outcome.status == "built", outcome.error
    written = (project / "figures" / "quick" / "toy" / "told.csv").read_text()
    assert written == "{'preset': 'quick', 'rounds': 7}\n"


def test_reasons_in_words(project, kernels):
    write_notebook("toy/a", "x = 1")
    assert reasons("toy/a") == ["never built"]
    assert statuses(make.rebuild(["toy"], "quick")) == {"toy/a": "built"}
    assert reasons("toy/a") == []
    assert reasons("toy/a", rounds=30) == ["parameter rounds: 20 -> 30"]

    (project / "params/quick/toy/a.yaml").write_text("rounds: 25\n")
    assert reasons("toy/a") == ["parameter rounds: 20 -> 25"]
    (project / "params/quick/toy/a.yaml").write_text("")

    write_notebook("toy/a", "x = 2")
    assert reasons("toy/a") == ["notebook changed"]
    write_notebook("toy/a", "x = 1", parameters=PARAMETERS.replace("20", "21"))
    assert reasons("toy/a") == ["parameter rounds: 20 -> 21"]
    write_notebook("toy/a", "x = 1", parameters=PARAMETERS + "seed = 1")
    assert reasons("toy/a") == ["parameter seed: absent -> 1"]
    write_notebook("toy/a", "x = 1")

    output = project / "figures/quick/toy/a.csv"
    content = output.read_text()
    output.write_text("edited")
    assert reasons("toy/a") == ["output edited: a.csv"]
    output.unlink()
    assert reasons("toy/a") == ["output missing: a.csv"]
    output.write_text(content)
    assert reasons("toy/a") == []


def test_changed_parameters_take_no_committed_files_place(project, kernels):
    """``-p ways 4`` at the preset ``cpu`` drew over the committed figure."""
    write_notebook("toy/a")
    (project / "params/cpu/toy").mkdir(parents=True)
    (project / "params/cpu/toy/a.yaml").write_text("preset: cpu\nrounds: 25\n")
    committed = project / "figures/cpu/toy/a.csv"
    make.rebuild(["toy/a"], "cpu")
    content = committed.read_text()
    lines: list[str] = []
    for settings in ({"rounds": 4}, {"rounds": 5}, {"rounds": "25"}):
        make.rebuild(["toy/a"], "cpu", overrides=settings, echo=lines.append)
        assert committed.read_text() == content
    tried = project / "figures/changed/cpu/toy"
    assert "'rounds': 5" in (tried / "a.csv").read_text()
    words = f", in {tried}: parameters are not those of params/cpu/toy/a.yaml"
    assert [line.endswith(words) for line in lines] == [False, True] * 2 + [False]
    assert lines[2] == "toy/a: parameter rounds: 4 -> 5"
    assert lines[4] == "toy/a: current"
    make.rebuild(["toy/a"], "quick", overrides={"rounds": 4})
    assert (project / "figures/quick/toy/a.csv").exists()


def test_prose_does_not_make_stale(project, kernels):
    write_notebook("toy/a", "x = 1")
    make.rebuild([], "quick")
    path = project / "notebooks/papers/toy/a.ipynb"
    content = nbformat.read(path, 4)
    content.cells[0].source = "# Another title"
    nbformat.write(content, path)
    assert reasons("toy/a") == []


def test_a_mapping_stays_current_in_its_own_order(project, kernels):
    parameters = 'preset = "quick"\npicture = {"b": 1, "a": 2}  # not sorted\n'
    write_notebook("toy/a", "pass", parameters=parameters)
    make.rebuild(["toy/a"], "quick")
    assert reasons("toy/a") == []
    assert reasons("toy/a", picture={"a": 2, "b": 1}) != []


def test_other_output_folder_is_not_current(project, kernels, monkeypatch):
    write_notebook("toy/a")
    make.rebuild([], "quick")
    monkeypatch.setenv("FEDLIB_FIGURES", str(project / "elsewhere"))
    assert reasons("toy/a") == ["never built"]
    make.rebuild([], "quick")
    monkeypatch.setenv("FEDLIB_FIGURES", str(project / "figures"))
    assert reasons("toy/a") == []


def test_a_damaged_stamp_counts_as_never_built(project, kernels):
    write_notebook("toy/a")
    make.rebuild([], "quick")
    (stamp,) = (project / "cache/stamps").rglob("*.json")
    for damage in ("{", json.dumps({"notebook": ""})):
        stamp.write_text(damage)
        assert reasons("toy/a") == ["never built"]


def test_force_and_dry_run(project, kernels):
    write_notebook("toy/a")
    lines = []
    (planned,) = make.rebuild([], "quick", dry_run=True, echo=lines.append)
    assert (planned.status, planned.reasons) == ("planned", ["never built"])
    assert lines == [
        "toy/a: never built; no run is kept, its notebook computes what it shows"
    ]
    assert kernels == []
    make.rebuild([], "quick")
    (forced,) = make.rebuild([], "quick", force=True)
    assert (forced.status, forced.reasons) == ("built", ["forced"])
    assert kernels == ["a", "a"]


def test_one_method_touches_only_its_artefacts(project, kernels, edit):
    for method in ("fedmps", "local"):
        write_notebook(
            f"toy/{method}", parameters=f"{PARAMETERS}methods = ['{method}']\n"
        )
    write_notebook("toy/shows", "from fedlib.methods import fedmps\nfedmps.client")
    write_notebook("toy/none", "x = 1")
    make.rebuild([], "quick")
    edit("fedlib.methods.fedmps", "def client(", "ANOTHER = 1\n\n\ndef client(")
    assert not any(reasons(name) for name in artefacts.names())
    edit("fedlib.methods.fedmps", "begun = down", "begun = 1.0 * down")
    found = {name: reasons(name) for name in artefacts.names()}
    assert found == {
        "toy/fedmps": ["code changed: fedlib/methods/fedmps.py (client)"],
        "toy/local": [],
        "toy/none": [],
        "toy/shows": ["code changed: fedlib/methods/fedmps.py (client)"],
    }


def test_an_artefact_that_reads_others_comes_last_and_follows_them(project, kernels):
    reading = f"{PARAMETERS}reads = ['toy']\n"
    write_notebook("toy/a_board", parameters=reading)
    write_notebook("toy/b")
    numbers = project / "params" / "reference" / "toy" / "table1.csv"
    numbers.parent.mkdir(parents=True)
    numbers.write_text("mean\n1\n")
    make.rebuild([], "quick")
    assert kernels == ["b", "a_board"]
    assert (reasons("toy/a_board"), reasons("toy/b")) == ([], [])
    numbers.write_text("mean\n2\n")
    assert reasons("toy/b") == ["input changed: toy/table1.csv"]
    numbers.write_text("mean\n1\n")
    make.rebuild(["b"], "quick", overrides={"rounds": 3})
    assert reasons("toy/a_board") == ["input changed: toy/b"]


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("from fedlib import Spec, partitions", set()),
        (
            "import fedlib.core.losses as l\nfrom fedlib import Spec\nSpec, l.supcon",
            {"fedlib.runs.spec.Spec", "fedlib.core.losses.supcon"},
        ),
        (
            "from fedlib.partitions import nway_kshot as draw\ndraw(1)",
            {"fedlib.partitions.nway.nway_kshot"},
        ),
        ("import fedlib.core.losses as l\nl.supcon(1)", {"fedlib.core.losses.supcon"}),
        (
            "import fedlib as f\nf.run(1)\nf.papers.fedmps",
            {"fedlib.runs.runner.run", "fedlib.papers.fedmps.protocols.fedmps"},
        ),
        (
            "%matplotlib inline\n!ls\nfrom fedlib.core import protos\nshow(protos)",
            {"fedlib.core.protos"},
        ),
        ("import torch, os.path\ntorch.ones(1)", set()),
    ],
)
def test_definitions_that_a_notebook_uses(project, code, wanted):
    write_notebook("toy/a", code)
    found = staleness.used(project / "notebooks/papers/toy/a.ipynb")
    assert {str(place) for place in found} == wanted


def test_new_data_make_stale(project, kernels, monkeypatch):
    write_notebook("toy/a", parameters=f"{PARAMETERS}datasets = ['digits']\n")
    write_notebook("toy/b")
    make.rebuild([], "quick")
    other = data.load("digits")._replace(fingerprint="another")
    monkeypatch.setattr(staleness, "facts", lambda name: other)
    assert reasons("toy/a") == ["data changed: digits"]
    assert reasons("toy/b") == []


def test_missing_data_fail_that_artefact_before_a_kernel(project, kernels, monkeypatch):
    monkeypatch.delenv("FEDLIB_DATA", raising=False)
    write_notebook("toy/a", parameters=f"{PARAMETERS}dataset = 'mnist'\n")
    write_notebook("toy/b")
    with pytest.raises(DataError) as missing:
        data.load("mnist")
    failed, built = make.rebuild([], "quick")
    assert failed.status == "failed"
    assert failed.error == " ".join(str(missing.value).split())  # on one line
    assert built.status == "built"
    assert kernels == ["b"]


@pytest.mark.parametrize(
    ("overrides", "parameters", "message"),
    [
        ({"ruonds": 5}, PARAMETERS, "did you mean 'rounds'"),
        (
            {"rounds": "5.5"},
            PARAMETERS,
            "toy/b: rounds: got '5.5', expected an int",
        ),
        (
            {"preset": "cpu"},
            PARAMETERS,
            "preset: got 'cpu', expected the one",
        ),
        ({}, "rounds = 20", "toy/b: the notebook has no parameter 'preset'"),
        ({}, PARAMETERS + "method = 'fedmsp'", "did you mean 'fedmps'"),
        ({}, PARAMETERS + "datasets = ['digit']", "did you mean 'digits'"),
    ],
)
def test_wrong_settings_stop_everything(
    project, kernels, overrides, parameters, message
):
    write_notebook("toy/a")
    write_notebook("toy/b", parameters=parameters)
    names = ["toy/b"] if overrides else []
    with pytest.raises(SettingError, match=message):
        make.rebuild(names, "quick", overrides=overrides)
    assert kernels == []


def test_names(project):
    for name in ("one/table1", "one/table2", "two/table1"):
        write_notebook(name)
    assert artefacts.select([]) == ["one/table1", "one/table2", "two/table1"]
    assert artefacts.select(["one"]) == ["one/table1", "one/table2"]
    assert artefacts.select(["table2", "one"]) == ["one/table2", "one/table1"]
    with pytest.raises(SettingError, match="could be any of"):
        artefacts.select(["table1"])
    with pytest.raises(SettingError, match="did you mean 'table2'"):
        artefacts.select(["tabel2"])
    with pytest.raises(SettingError, match="did you mean 'quick'"):
        make.rebuild([], "qiuck")
    with pytest.raises(SettingError, match=r"cpu/one/table1\.yaml: no such file"):
        make.rebuild([], "cpu")


def test_outputs_belong_to_the_longest_name(project):
    for name in ("toy/fig1", "toy/fig1_left", "toy/fig10"):
        write_notebook(name)
    folder = project / "figures/quick/toy"
    folder.mkdir(parents=True)
    for file in ("fig1.png", "fig1-b.csv", "fig1_left.png", "fig10.png", "fig1.txt"):
        (folder / file).touch()
    found = [p.name for p in artefacts.outputs("toy/fig1", "quick")]
    assert found == ["fig1-b.csv", "fig1.png"]
    found = [p.name for p in artefacts.outputs("toy/fig1_left", "quick")]
    assert found == ["fig1_left.png"]


def test_leftovers_are_not_taken_for_outputs(project, kernels):
    write_notebook("toy/a")
    left = project / "figures/quick/toy/a_before.csv"
    left.parent.mkdir(parents=True)
    left.write_text("of an older notebook")
    make.rebuild([], "quick")
    left.unlink()
    assert reasons("toy/a") == []


@pytest.fixture
def with_runs(project, monkeypatch) -> list[Spec]:
    """Let ``toy/a`` need two short runs; return them."""
    specs = [papers.fedmps("digits", "local", seed=s, rounds=2) for s in (1, 2)]
    monkeypatch.setitem(special.SPECIAL, "toy/a", lambda p: specs)
    write_notebook("toy/a")
    return specs


def test_missing_runs_come_first(with_runs, kernels, monkeypatch):
    lines = []
    (built,) = make.rebuild(["a"], "quick", echo=lines.append)
    assert built.status == "built"
    assert lines[0] == "toy/a: never built; 2 of 2 runs missing"
    assert runner.pending(with_runs) == []
    monkeypatch.setattr(many, "run_many", lambda *_: pytest.fail("ran"))
    (current,) = make.rebuild(["a"], "quick")
    assert current.status == "current"


@pytest.fixture
def by_hand(with_runs, monkeypatch):
    """Return a clock set by hand, lines told, and the progress of two artefacts.

    They need three distinct runs of 2, 2 and 6 rounds, of 10 seconds each.
    """
    write_notebook("toy/b")
    long = papers.fedmps("digits", "local", seed=3, rounds=6)
    monkeypatch.setitem(special.SPECIAL, "toy/b", lambda p: [with_runs[0], long])
    now, lines = [500.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(Progress, "TICK", 3600)
    monkeypatch.setattr(timings, "seconds_per_round", lambda s: 10.0)
    chosen = [artefacts.prepare(name, "quick") for name in ("toy/a", "toy/b")]
    progress = Progress(chosen, 1, lines.append)
    return now, lines, progress, [*with_runs, long]


def test_progress_says_what_is_left(by_hand):
    now, lines, progress, specs = by_hand
    with progress:
        progress.begin(specs)
        for seconds, spec in ((20, specs[0]), (40, specs[1]), (100, specs[2])):
            now[0] = 500.0 + seconds
            progress.count(spec)
    # After 20 s it is too early for a line. After 40 s four of ten rounds are done: 6
    # rounds of 10 s are left, and two notebooks of 10 s each.
    assert lines == ["  run 2 of 3, about 80 s left", "  run 3 of 3, about 20 s left"]


def test_progress_goes_on_within_a_run(by_hand, monkeypatch):
    now, lines, progress, specs = by_hand
    monkeypatch.setattr(Progress, "TICK", 0.01)
    progress.begin(specs)
    now[0] += 20
    progress.count(specs[0])
    now[0] += 15
    with progress:
        for _ in range(500):
            if lines:
                break
            time.sleep(0.01)
    assert lines == ["  run 1 of 3, about 85 s left"]  # 20 + 60 + 20 - 15


def test_a_prediction_waits_until_enough_is_done(by_hand, monkeypatch):
    now, lines, progress, specs = by_hand
    progress.pace.notebooks = 1000
    with progress:
        now[0] += 40
        progress.count(specs[0])
    assert lines == ["  run 1 of 3"]


def test_the_pace_of_runs_on_disk_is_known(with_runs, monkeypatch):
    runner.run(with_runs[0])
    monkeypatch.setattr(timings, "seconds_per_round", lambda s: 30.0)
    progress = Progress([artefacts.prepare("toy/a", "quick")], 1, print)
    assert (progress.runs, progress.pace.notebooks) == (1, 1)
    (name,) = progress.pace.runs
    assert progress.pace._expected(name) == pytest.approx(60)


def test_only_what_is_due_is_waited_for(with_runs, kernels, monkeypatch):
    write_notebook("toy/b")
    make.rebuild(["a"], "quick")
    seen = []
    monkeypatch.setattr(
        "fedlib.rebuild.progress.Pace",
        lambda *args: seen.append(args) or pace.Pace(*args),
    )
    make.rebuild([], "quick")
    assert [(list(specs), count) for specs, count, *_ in seen] == [([], 1)]
    make.rebuild([], "quick", force=True)
    assert [(list(specs), count) for specs, count, *_ in seen[1:]] == [([], 2)]


def test_rebuild_counts_each_missing_run_once(with_runs, kernels, monkeypatch):
    counted = []
    monkeypatch.setattr(Progress, "count", lambda _, s: counted.append(s.seed))
    make.rebuild(["a"], "quick")
    assert sorted(counted) == [1, 2]


def test_other_settings_of_runs_make_stale(with_runs, kernels, monkeypatch):
    make.rebuild([], "quick")
    assert reasons("toy/a") == []
    with_runs.reverse()
    assert reasons("toy/a") == []
    other = papers.fedmps("digits", "local", seed=1, rounds=2, clients=9)
    monkeypatch.setitem(special.SPECIAL, "toy/a", lambda p: [other, with_runs[0]])
    assert reasons("toy/a") == ["settings of runs changed"]
    assert reasons("toy/a", rounds=30) == ["parameter rounds: 20 -> 30"]


def test_a_failing_run_is_the_artefacts_failure(with_runs, kernels, monkeypatch):
    def diverge(specs):
        raise ArithmeticError("round 1: loss is nan\nof client 3")

    write_notebook("toy/b")
    monkeypatch.setattr(many, "run_many", lambda s, *_: diverge(s) if s else [])
    failed, built = make.rebuild([], "quick")
    assert failed.error == "ArithmeticError: round 1: loss is nan of client 3"
    assert built.status == "built"
    assert kernels == ["b"]


def test_each_run_that_fails_is_named_and_the_others_are_done(
    with_runs, kernels, monkeypatch
):
    bad = papers.fedmps(
        "digits", "local", seed=3, rounds=2, training={"learning_rate": 1e30}
    )
    monkeypatch.setitem(special.SPECIAL, "toy/a", lambda p: [bad, *with_runs])
    write_notebook("toy/b")
    monkeypatch.setitem(special.SPECIAL, "toy/b", lambda p: [])
    failed, built = make.rebuild([], "quick")
    name = f"local on digits, seed 3, key {address.key(bad)}: NonFiniteError: local,"
    assert failed.error.startswith("1 of 3 runs failed, the others are done - " + name)
    assert "sub-exception" not in failed.error
    assert (failed.status, built.status) == ("failed", "built")
    assert runner.pending([bad, *with_runs]) == [bad]


def test_estimate(with_runs, monkeypatch):
    monkeypatch.setattr(runner, "measure", lambda spec: 0.25)
    (row,) = costs.estimate([], "quick").to_dict("records")
    assert row == {
        "name": "toy/a",
        **{"runs": 2, "cached": 0, "missing": 2, "no_data": 0, "rounds": 4},
        **{"by_shape": 0, "unknown": 0, "seconds": 1.0},
    }
    runner.run(with_runs[0])
    monkeypatch.setattr(runner, "measure", lambda spec: pytest.fail("measured"))
    monkeypatch.setattr(
        timings, "seconds_per_round", lambda s: 3.0 if s == with_runs[0] else None
    )
    (row,) = costs.estimate([], "quick").to_dict("records")
    assert (row["cached"], row["missing"], row["seconds"]) == (1, 1, 6.0)


def test_a_dry_run_measures_nothing(with_runs, kernels, monkeypatch):
    monkeypatch.setattr(runner, "measure", lambda spec: pytest.fail("measured"))
    lines = []
    make.rebuild([], "quick", dry_run=True, echo=lines.append)
    assert lines == [
        "toy/a: never built; 2 of 2 runs missing; 2 of a kind never timed here "
        "(fedlib estimate times them)"
    ]
    runner.run(with_runs[0])  # of the other's kind, but for the seed
    monkeypatch.setattr(timings, "seconds_per_round", lambda s: 3.0)
    make.rebuild([], "quick", dry_run=True, echo=lines.append)
    assert lines[1] == "toy/a: never built; 1 of 2 runs missing, about 6 s"
    assert kernels == []


def test_a_dry_run_plans_also_what_has_no_data_yet(with_runs, kernels, monkeypatch):
    away = papers.fedmps("flowers", "local", seed=1, rounds=2)
    monkeypatch.setitem(special.SPECIAL, "toy/a", lambda p: [*with_runs, away])
    monkeypatch.setenv("FEDLIB_DATA", "nowhere")
    lines = []
    (planned,) = make.rebuild([], "quick", dry_run=True, echo=lines.append)
    assert (planned.status, planned.reasons) == ("planned", ["data missing"])
    assert lines[0].startswith("toy/a: 3 runs; data missing: Flowers is not here.")
    (failed,) = make.rebuild([], "quick")
    assert failed.status == "failed"


def test_estimate_takes_runs_without_data_from_their_shapes(with_runs, monkeypatch):
    away = papers.fedmps("flowers", "local", seed=1, rounds=2)
    monkeypatch.setitem(special.SPECIAL, "toy/a", lambda p: [*with_runs, away])
    monkeypatch.setattr(runner, "measure", lambda spec: 0.25)
    monkeypatch.setattr(shapes, "RATE", 2 * shapes.RATE)
    monkeypatch.setenv("FEDLIB_DATA", "nowhere")
    each = shapes.seconds_per_round(away)
    assert each is not None
    (row,) = costs.estimate([], "quick").to_dict("records")
    assert (row["runs"], row["missing"], row["no_data"]) == (3, 2, 1)
    assert (row["by_shape"], row["unknown"], row["rounds"]) == (1, 0, 6)
    assert row["seconds"] == 1.0 + 2 * each
    domains = papers.fedhpro("digits_domains", "fedavg", rounds=2)
    monkeypatch.setitem(special.SPECIAL, "toy/a", lambda p: [domains])
    (row,) = costs.estimate([], "quick").to_dict("records")
    assert (row["unknown"], math.isnan(row["seconds"])) == (1, True)
    monkeypatch.setitem(special.SPECIAL, "toy/a", lambda p: [domains, away])
    (row,) = costs.estimate([], "quick").to_dict("records")
    assert (row["unknown"], row["seconds"]) == (1, 2 * each)


def test_estimate_measures_no_round_that_takes_long(with_runs, monkeypatch):
    monkeypatch.setattr(runner, "measure", lambda spec: pytest.fail("measured"))
    monkeypatch.setattr(shapes, "seconds_per_round", lambda spec: 20.0)
    (row,) = costs.estimate([], "quick").to_dict("records")
    assert (row["by_shape"], row["seconds"]) == (2, 4 * 20.0)
    monkeypatch.setattr(timings, "seconds_per_round", lambda spec: 3.0)
    (row,) = costs.estimate([], "quick").to_dict("records")
    assert (row["by_shape"], row["seconds"]) == (0, 4 * 3.0)


def test_one_pace_for_runs_that_differ_in_real_numbers(with_runs, monkeypatch):
    base = papers.fedmps("digits", "fedmps", seed=1, rounds=2)

    def like(**hp) -> Spec:
        return base.model_copy(update={"hp": base.hp | hp})

    weight = next(n for n, v in registry.method("fedmps").hp() if isinstance(v, float))
    same = [base, like(**{weight: 0.125}), base.model_copy(update={"seed": 9})]
    other = [
        papers.fedmps("digits", "local", seed=1, rounds=2),
        base.model_copy(update={"participation": 0.5}),
        base.model_copy(update={"clients": base.clients - 1}),
    ]
    measured = []
    monkeypatch.setattr(runner, "measure", lambda s: measured.append(s) or 1.0)
    specs = [*same, *other]
    monkeypatch.setitem(special.SPECIAL, "toy/a", lambda p: specs)
    (row,) = costs.estimate([], "quick").to_dict("records")
    assert measured == [base, *other]
    assert row["seconds"] == sum(spec.rounds for spec in specs)


def test_durations():
    shown = [costs.duration(s) for s in (0.4, 89, 90, 5399, 5400, 4.32e6)]
    assert shown == ["0 s", "89 s", "2 min", "90 min", "1.5 h", "1,200 h"]


@pytest.mark.slow
def test_notebooks_are_executed_beside_each_other(project):
    """Other processes know the names of the project's artefacts only."""
    wanted = ["gfpl/table3", "fedmps/fig3"]
    for name in wanted:
        paper, short = name.split("/")
        write_notebook(name, WRITE.replace('"toy"', f'"{paper}"').format(name=short))
    lines = []
    both = make.rebuild(wanted, "quick", 2, echo=lines.append)
    assert [(o.name, o.status) for o in both] == [(name, "built") for name in wanted]
    texts = {path.stem: path.read_text() for path in project.rglob("*.csv")}
    assert texts == {"table3": "rounds\n20\n", "fig3": "rounds\n20\n"}
    again = make.rebuild(wanted, "quick", 2)
    assert [o.status for o in again] == ["current"] * 2
    # The second begins before the first is done.
    said = [line for line in lines if not line.startswith("  ")]  # of how far it is
    assert said[:2] == [f"{name}: never built" for name in wanted]
    assert all(": built in " in line for line in said[2:])


@pytest.fixture
def published_runs(with_runs, own_cache, monkeypatch) -> list[Spec]:
    """Publish the runs of ``toy/a``, and forget them in the cache."""
    for spec in with_runs:
        published.publish(runner.run(spec).key)
    own_cache.rename(own_cache.with_name("elsewhere"))
    return with_runs


@pytest.mark.parametrize("name", ["fedmps/table3", "fedpa/table2"])
def test_tables_of_runs_need_no_models(name):
    """Else a reader's computer would make them again: published runs have none."""
    places = staleness.used(artefacts.prepare(name, "cpu").notebook)
    assert make.MODELS not in code(places).parts
    places = staleness.used(artefacts.prepare("fedmps/fig7", "cpu").notebook)
    assert make.MODELS in code(places).parts


def test_published_runs_are_not_computed(published_runs, kernels, monkeypatch):
    monkeypatch.setattr(runner, "_compute", lambda *_: pytest.fail("computed"))
    lines = []
    (built,) = make.rebuild(["a"], "quick", echo=lines.append)
    assert built.status == "built"
    assert lines[0] == "toy/a: never built"


def test_what_needs_models_says_so_and_computes(published_runs, kernels):
    write_notebook("toy/a", "from fedlib.runs import runner", "runner.final")
    lines = []
    (built,) = make.rebuild(["a"], "quick", echo=lines.append)
    assert built.status == "built"
    assert lines[:2] == [
        "toy/a: needs models, which are not published",
        "toy/a: never built; 2 of 2 runs missing",
    ]
    with published.unread():
        assert runner.pending(published_runs) == []


def test_recompute_proves_published_runs_or_says_which_differ(
    published_runs, kernels, own_cache
):
    lines = []
    (built,) = make.rebuild(["a"], "quick", recompute=True, echo=lines.append)
    assert built.status == "built"
    assert lines[0] == "toy/a: never built; 2 of 2 runs missing"
    assert lines[-1] == "toy/a: 2 published runs have the same bits here"
    spec = published_runs[0]
    path = published.path_of(spec, address.key(spec))
    record = published.read_record(path)
    log = published.read_log(path, record)
    published.write(
        record, log._replace(term={"supervised": log.term["supervised"] + 1})
    )
    (failed,) = make.rebuild(["a"], "quick", recompute=True)
    assert failed.status == "failed"
    assert failed.error == f"other numbers than published: {record.key}"
