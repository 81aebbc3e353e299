"""Runs: what a key depends on, the same bits everywhere, and nothing lost."""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open

from fedlib import papers, registry
from fedlib.core.log import NOT_EVALUATED, Log
from fedlib.core.method import NonFiniteError, cohort_size
from fedlib.core.tree import flatten
from fedlib.runs import address, checkpoints, on_disk, reports, runner, timings
from fedlib.runs.features import features
from fedlib.runs.federation import federation
from fedlib.runs.results import Result
from fedlib.runs.spec import Spec
from fedlib.support.paths import ROOT
from tests.conftest import TOY, toy_net

METHODS = list(registry.METHODS)


def small(method: str = "local", **changes) -> Spec:
    """Return a run of the digits that takes about a second."""
    toy = {"clients": 4, "rounds": 3, "net": toy_net(method)}
    toy["hp"] = TOY.get(method, {}) | changes.pop("hp", {})
    return papers.fedmps("digits", method, **(toy | changes))


def assert_same_log(one: Result, other: Result) -> None:
    """Compare all logged tensors bit by bit."""
    left, right = one.log.flat(), other.log.flat()
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert value.dtype == right[name].dtype, name
        torch.testing.assert_close(  # a number that a round does not have is NaN
            value, right[name], rtol=0, atol=0, equal_nan=True, msg=name
        )


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Return a function that runs a spec without interruption in another cache."""

    def compute(spec: Spec) -> Result:
        with monkeypatch.context() as patch:
            patch.setenv("FEDLIB_CACHE", str(tmp_path / "elsewhere"))
            return runner.run(spec)

    return compute


def watch(
    patch: pytest.MonkeyPatch,
    name: str,
    stop: int | None = None,
    poison: int | None = None,
) -> list[int]:
    """Return the list of rounds that a method trains from now on.

    Training is cut off before round ``stop``; the losses of round ``poison`` are nan.
    """
    module = import_module(registry.module(name))
    real, played = module.METHOD.client, []

    def client(ctx, *rest):
        if ctx.round == stop:
            raise KeyboardInterrupt
        played.append(ctx.round)
        mine, up, terms = real(ctx, *rest)
        if ctx.round == poison:
            terms = {k: v * float("nan") for k, v in terms.items()}
        return mine, up, terms

    patch.setattr(module, "METHOD", module.METHOD._replace(client=client))
    return played


def cut_off(spec: Spec, monkeypatch: pytest.MonkeyPatch, before: int) -> Path:
    """Interrupt a run before a round and return its folder."""
    with monkeypatch.context() as patch:
        watch(patch, spec.method, stop=before)
        with pytest.raises(KeyboardInterrupt):
            runner.run(spec)
    return address.folder(spec)


def checkpoint_round(path: Path) -> int:
    with safe_open(path, "pt") as file:
        return int(file.metadata()["round"])


# keys


def test_the_key_changes_with_every_setting_and_not_with_its_spelling():
    specs = [
        small(),
        small("fedproto"),
        small(rounds=4),
        small(seed=1),
        small(partition_seed=1),
        small(clients=5),
        small(participation=0.5),
        small(eval_every=2),
        small(all_rules_every=2),
        small(ways=4),
        small(hp={"common_init": True}),
        small(training={"learning_rate": 0.2}),
        small(training={"learning_rate": 0.1, "drop_last": False}),
        small(partition={"shots": 11}),
    ]
    assert len({address.key(s) for s in specs}) == len(specs)
    assert address.key(small(rounds="3", hp={"common_init": "no"})) == address.key(
        small()
    )


@pytest.mark.parametrize(
    "change", [{"fingerprint": "0" * 16}, {"mean": (0.3,)}, {"std": (0.4,)}]
)
def test_the_key_changes_with_the_data(monkeypatch, change):
    before, known = address.key(small()), address.facts
    monkeypatch.setattr(address, "facts", lambda name: known(name)._replace(**change))
    assert address.key(small()) != before


def keys() -> dict[str, str]:
    """Return the part of all keys that is of the code."""
    return {name: address.code_of(small(name)).hash for name in METHODS}


@pytest.fixture(scope="module")
def before() -> dict[str, str]:
    """Return the keys of the code as it stands."""
    return keys()


def test_the_key_ignores_comments_docstrings_and_layout(before, edit):
    edit("fedlib.baselines.fedavg", "FedAvg: the mean", "FedAvg, that is the mean")
    edit(
        "fedlib.blocks.shared_model",
        '"""Send the model."""',
        '"""Step 1, rewritten."""',
    )
    edit(
        "fedlib.blocks.shared_model",
        "def broadcast(",
        "# a comment\n\n\ndef broadcast(",
    )
    edit(
        "fedlib.blocks.shared_model",
        'local = ctx.hp.buffers == "local"',
        'local = (\n        ctx.hp.buffers == "local")  # or not',
    )
    edit(
        "fedlib.core.training",
        '"""How a client trains in one round."""',
        '"""Training."""',
    )
    assert keys() == before


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("bit", range(len(METHODS).bit_length()))
def test_editing_methods_leaves_the_keys_of_the_others(before, edit, bit, wanted):
    """For any two methods, one of these sets has the first without the second."""
    edited = {m for i, m in enumerate(METHODS) if bool(i >> bit & 1) == wanted}
    for name in edited:
        edit(registry.module(name), 'source="', 'source="By ')
    after = keys()
    assert {m for m in METHODS if before[m] != after[m]} == edited


# block -> an edit of it, and the methods that are made of it
MADE_OF = {
    "shared_model": (
        ("up.samples, ctx", "up.samples + 1, ctx"),
        set(METHODS)
        - {"gfpl", "fedpa", "fedmps", "fedhpro", "fedpg", "local", "fedproto"},
    ),
    "personal_layers": (
        ("Model(params, buffers, model.known)", "Model(buffers, params, model.known)"),
        {"fedper", "fedrep"},
    ),
    "with_generator": (
        ("server.available | up.labels.any(0)", "server.available"),
        {"fedpa", "fedgen"},
    ),
    "virtual_data": (("WEIGHT = 0.1", "WEIGHT = 0.2"), {"fedpg", "vhl"}),
}


@pytest.mark.parametrize("block", MADE_OF)
def test_editing_a_block_changes_the_keys_of_the_methods_made_of_it(
    before, edit, block
):
    edited, made = MADE_OF[block]
    edit(f"fedlib.blocks.{block}", *edited)
    after = keys()
    assert {m for m in METHODS if before[m] != after[m]} == made


def test_shared_code_changes_every_key_and_code_without_numbers_none(before, edit):
    edit(
        "fedlib.support.paths", 'user_cache_path("fedlib")', 'user_cache_path("other")'
    )
    edit("fedlib.draw.plot", "import", "import os\nimport")
    assert keys() == before
    edit("fedlib.core.training", "Field(default=0.01", "Field(default=0.02")
    after = keys()
    assert all(before[m] != after[m] for m in METHODS)


# the same bits


@pytest.mark.parametrize("name", METHODS)
def test_the_same_spec_gives_the_same_bits_and_the_cache_returns_them(
    name, elsewhere, monkeypatch
):
    few = {"clients": 3, "partition": {"shots": 8, "test_shots": 4}}
    first = runner.run(small(name, **few))
    assert_same_log(first, elsewhere(small(name, **few)))
    played = watch(monkeypatch, name)
    stored = runner.run(small(name, **few))
    assert played == []
    assert stored.key == first.key
    record = json.loads((address.folder(first.spec) / "spec.json").read_text())
    keeps = not registry.method(name).forgets(registry.method(name).hp(**first.spec.hp))
    assert (record["kept_bytes"]["clients"] > 0) == keeps
    assert_same_log(stored, first)


def test_another_seed_gives_other_bits():
    one, other = runner.run(small(seed=1)), runner.run(small(seed=2))
    assert not torch.equal(one.log.term["supervised"], other.log.term["supervised"])


def test_tables_of_a_fresh_and_of_a_stored_result_are_equal():
    fresh, stored = (runner.run(small("fedmps")) for _ in range(2))
    pd.testing.assert_frame_equal(fresh.summary(), stored.summary())
    pd.testing.assert_frame_equal(fresh.payload(), stored.payload())
    pd.testing.assert_frame_equal(fresh.terms(), stored.terms())


ZYGOTE = """
import json, os, signal, sys, traceback
from fedlib.runs import runner
from fedlib.runs.spec import Spec

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    code, variables, values = json.loads(line)
    child = os.fork()
    if child == 0:
        os.environ.update(variables)
        try:
            exec(code, {"runs": runner, "Spec": Spec, **values})
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    print(child, flush=True)
"""


@pytest.fixture(scope="module", autouse=True)
def zygote():
    """Start a fresh interpreter that imports the library once and forks on demand."""
    with subprocess.Popen(
        [sys.executable, "-c", ZYGOTE],
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as started:
        yield started
        started.stdin.close()


def spawn(zygote: subprocess.Popen, own_cache: Path, code: str, **values: str) -> int:
    """Run code in a process of its own and return the process's number."""
    variables = {"FEDLIB_CACHE": str(own_cache), "FEDLIB_PROGRESS": "none"}
    zygote.stdin.write(json.dumps([code, variables, values]) + "\n")
    zygote.stdin.flush()
    return int(zygote.stdout.readline())


def wait_for(*paths: Path) -> None:
    deadline = time.monotonic() + 120
    while not all(path.exists() for path in paths):
        assert time.monotonic() < deadline, f"none of {[p.name for p in paths]} in time"
        time.sleep(0.005)


TWIN = """
import time
from pathlib import Path

compute = runs._compute

def counted(*given):
    with open(tally, "a") as file:
        file.write("computed ")
    time.sleep(1)
    return compute(*given)

runs._compute = counted
spec = Spec.model_validate_json(text)
Path(ready).touch()
while not Path(go).exists():
    time.sleep(0.005)
Path(done).write_text(runs.run(spec).key)
"""


def test_two_fresh_processes_compute_a_run_once_with_the_same_bits(
    tmp_path, own_cache, zygote, elsewhere
):
    spec = small("fedmps")
    go, tally = tmp_path / "go", tmp_path / "tally"
    ready, done = (
        [tmp_path / f"{kind}{i}" for i in "12"] for kind in ("ready", "done")
    )
    for one, other in zip(ready, done, strict=True):
        values = {"text": spec.model_dump_json(), "go": str(go), "tally": str(tally)}
        spawn(zygote, own_cache, TWIN, **values, ready=str(one), done=str(other))
    wait_for(*ready)
    go.touch()
    wait_for(*done)
    assert tally.read_text().split() == ["computed"]
    assert not runner.pending([spec])
    there = runner.run(spec)
    assert [path.read_text() for path in done] == [there.key] * 2
    assert_same_log(there, elsewhere(spec))


def test_a_killed_run_goes_on_with_the_same_bits(
    own_cache, zygote, elsewhere, monkeypatch
):
    spec = small("fedmps", rounds=12)
    home = address.folder(spec)
    code = "runs.run(Spec.model_validate_json(text))"
    victim = spawn(zygote, own_cache, code, text=spec.model_dump_json())
    wait_for(home / "checkpoint-before.safetensors")
    os.kill(victim, signal.SIGKILL)
    here = elsewhere(spec)
    assert runner.pending([spec]) == [spec]
    with monkeypatch.context() as patch:
        played = watch(patch, "fedmps")
        resumed = runner.run(spec)
    assert played[0] >= 2
    assert played == list(range(played[0], 13))
    assert_same_log(resumed, here)
    assert not list(home.glob("checkpoint*"))


# nothing lost


@pytest.mark.parametrize("damage", ["half", "empty", "missing"])
def test_a_damaged_checkpoint_falls_back_on_the_one_before(
    damage, elsewhere, monkeypatch
):
    spec = small("fedproto", rounds=5)
    now = cut_off(spec, monkeypatch, before=4) / "checkpoint.safetensors"
    assert checkpoint_round(now) == 3
    assert checkpoint_round(now.with_stem("checkpoint-before")) == 2
    content = now.read_bytes()
    if damage == "missing":
        now.unlink()
    else:
        now.write_bytes(content[: len(content) // 2] if damage == "half" else b"")
    with monkeypatch.context() as patch:
        played = watch(patch, "fedproto")
        if damage == "missing":
            found = runner.run(spec)
        else:
            told = rf"checkpoint.safetensors of run {address.key(spec)} is damaged"
            with pytest.warns(UserWarning, match=told):
                found = runner.run(spec)
    assert played == [3, 4, 5]
    assert_same_log(found, elsewhere(spec))


def test_two_damaged_checkpoints_start_from_the_beginning(elsewhere, monkeypatch):
    spec = small("fedproto", rounds=4)
    home = cut_off(spec, monkeypatch, before=4)
    for path in home.glob("checkpoint*"):
        path.write_bytes(path.read_bytes()[:-1])
    with monkeypatch.context() as patch:
        played = watch(patch, "fedproto")
        with pytest.warns(UserWarning, match="damaged") as told:
            found = runner.run(spec)
    assert [str(warning.message).split()[0] for warning in told] == [
        "checkpoint.safetensors",
        "checkpoint-before.safetensors",
    ]
    assert played == [1, 2, 3, 4]
    assert_same_log(found, elsewhere(spec))


def test_a_second_cut_after_a_damaged_checkpoint_loses_nothing(monkeypatch):
    spec = small("fedproto", rounds=5)
    now = cut_off(spec, monkeypatch, before=4) / "checkpoint.safetensors"
    now.write_bytes(now.read_bytes()[:-1])

    def killed(*_):
        raise KeyboardInterrupt

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with monkeypatch.context() as patch:
            patch.setattr(on_disk, "write", killed)
            with pytest.raises(KeyboardInterrupt):
                runner.run(spec)
        played = watch(monkeypatch, "fedproto")
        runner.run(spec)
    assert played == [3, 4, 5]


def test_full_segments_of_the_log_are_written_once(elsewhere, monkeypatch):
    """Evaluations and rules have rounds of their own, and the log is one in the end."""
    monkeypatch.setattr(checkpoints, "SEGMENT", 2)
    spec = small("gfpl", rounds=9, eval_every=2, all_rules_every=6)
    wanted = elsewhere(spec)
    home = cut_off(spec, monkeypatch, before=4)
    first = home / "log-000000.safetensors"
    written = first.stat().st_mtime_ns
    with safe_open(first, "pt") as file:
        assert len(file.get_tensor("cohort")) == 2
    with safe_open(home / "checkpoint.safetensors", "pt") as file:
        assert (file.metadata()["round"], file.metadata()["segments"]) == ("3", "1")
        assert len(file.get_tensor("log/cohort")) == 1
    cut_off(spec, monkeypatch, before=8)  # after round 7: a second and a third segment
    assert [p.name for p in sorted(home.glob("log-*"))] == [
        f"log-{number:06d}.safetensors" for number in range(3)
    ]
    assert first.stat().st_mtime_ns == written
    assert_same_log(runner.run(spec), wanted)
    assert not list(home.glob("log-*"))
    assert_same_log(runner.run(spec), wanted)


def test_a_cut_between_a_segment_and_its_checkpoint_loses_nothing(
    elsewhere, monkeypatch
):
    monkeypatch.setattr(checkpoints, "SEGMENT", 2)
    spec, write = small("fedproto", rounds=6), on_disk.write
    wanted = elsewhere(spec)

    def killed(path, tensors, metadata):
        if metadata.get("round") == "4":
            raise KeyboardInterrupt
        write(path, tensors, metadata)

    with monkeypatch.context() as patch:
        patch.setattr(on_disk, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            runner.run(spec)
    assert (address.folder(spec) / "log-000001.safetensors").exists()
    with monkeypatch.context() as patch:
        played = watch(patch, "fedproto")
        assert_same_log(runner.run(spec), wanted)
    assert played == [4, 5, 6]


def test_a_damaged_segment_starts_from_the_beginning(elsewhere, monkeypatch):
    monkeypatch.setattr(checkpoints, "SEGMENT", 2)
    spec = small("fedproto", rounds=5)
    segment = cut_off(spec, monkeypatch, before=5) / "log-000000.safetensors"
    segment.write_bytes(segment.read_bytes()[:-1])
    with monkeypatch.context() as patch:
        played = watch(patch, "fedproto")
        with pytest.warns(UserWarning, match="is damaged") as told:
            found = runner.run(spec)
    assert str(told[0].message).startswith("log-000000.safetensors of run")
    assert played == [1, 2, 3, 4, 5]
    assert_same_log(found, elsewhere(spec))


def test_a_damaged_result_is_computed_again(monkeypatch):
    first = runner.run(small())
    path = address.folder(small()) / "result.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with monkeypatch.context() as patch:
        played = watch(patch, "local")
        with pytest.warns(UserWarning, match="result.safetensors of run .* is damaged"):
            again = runner.run(small())
    assert played == [1, 2, 3]
    assert_same_log(first, again)
    assert_same_log(first, runner.run(small()))  # whole again, so that nothing is told


def rewritten(path: Path, change=lambda tensors: tensors, **told: str) -> None:
    """Write a file anew, as someone would who knows how it is sealed."""
    tensors, metadata = on_disk.read(path)
    on_disk.write(path, change(tensors), metadata | told)


def flipped(path: Path, of: str) -> None:
    """Flip the lowest bit of a tensor in its file, which stays a file of tensors."""
    content = bytearray(path.read_bytes())
    length = int.from_bytes(content[:8], "little")
    place = json.loads(content[8 : 8 + length])[of]["data_offsets"][0]
    content[8 + length + place] ^= 1
    path.write_bytes(content)


def test_a_flipped_bit_of_a_result_is_seen(monkeypatch):
    first = runner.run(small())
    path = address.folder(small()) / "result.safetensors"
    flipped(path, "term/supervised")
    with pytest.warns(UserWarning, match="other bits"):
        assert runner.pending([small()]) == [small()]
    with pytest.warns(UserWarning, match="other bits"):
        assert_same_log(first, runner.run(small()))


def test_a_flipped_bit_of_a_checkpoint_falls_back_on_the_one_before(
    elsewhere, monkeypatch
):
    spec = small("fedproto", rounds=5)
    now = cut_off(spec, monkeypatch, before=4) / "checkpoint.safetensors"
    with safe_open(now, "pt") as file:
        name = next(n for n in file.keys() if n.startswith("mine/"))
    flipped(now, name)
    with monkeypatch.context() as patch:
        played = watch(patch, "fedproto")
        with pytest.warns(UserWarning, match=r"checkpoint.safetensors .*other bits"):
            found = runner.run(spec)
    assert played == [3, 4, 5]
    assert_same_log(found, elsewhere(spec))


def test_a_result_of_someone_else_is_no_result(monkeypatch):
    """A thousand times right, another format, another record: told, and redone."""
    first = runner.run(small())
    home = address.folder(small())
    path, record = home / "result.safetensors", home / "spec.json"
    whole, told = path.read_bytes(), record.read_text()
    rule = "accuracy/personal/head_own"
    rewritten(path, lambda t: t | {rule: t[rule] * 1000})
    with pytest.warns(UserWarning, match=f"damaged; ignored .{rule}: got .* right of"):
        assert runner.pending([small()]) == [small()]
    path.write_bytes(whole)
    rewritten(path, format="2")
    with pytest.warns(UserWarning, match="format"):
        assert runner.pending([small()]) == [small()]
    path.write_bytes(whole)
    assert runner.pending([small()]) == []
    for other in ("{", "[" * 100_000, told.replace('"seed": 1234', '"seed": 1')):
        record.write_text(other)
        with pytest.warns(UserWarning, match="result.safetensors"):
            assert runner.pending([small()]) == [small()]
    with pytest.warns(UserWarning, match="other settings"):
        assert_same_log(first, runner.run(small()))
    assert record.read_text() == told


@pytest.mark.parametrize(
    "change",
    [
        {"round": "7"},
        {"round": "ten"},
        {"segments": "1" + "0" * 30},
        lambda t: t | {"log/cohort": t["log/cohort"] + 1},
        lambda t: t | {"log/bogus": torch.zeros(1)},
        lambda t: t | {"log/server/x": torch.zeros(0)},
        lambda t: {n: v for n, v in t.items() if not n.startswith("mine/")},
        lambda t: {n: v.double() if n[:5] == "mine/" else v for n, v in t.items()},
        lambda t: {n: v[..., :1] if n[:5] == "mine/" else v for n, v in t.items()},
        lambda t: {n: v / 0 if n[:5] == "mine/" else v for n, v in t.items()},
    ],
)
def test_a_checkpoint_of_someone_else_is_told_and_left(change, elsewhere, monkeypatch):
    spec = small("fedproto", rounds=5)
    now = cut_off(spec, monkeypatch, before=4) / "checkpoint.safetensors"
    rewritten(now, **change) if isinstance(change, dict) else rewritten(now, change)
    with monkeypatch.context() as patch:
        played = watch(patch, "fedproto")
        with pytest.warns(UserWarning, match=r"checkpoint.safetensors .*got"):
            found = runner.run(spec)
    assert played == [3, 4, 5]
    assert_same_log(found, elsewhere(spec))


def test_models_of_someone_else_are_made_again():
    spec = small()
    runner.run(spec)
    wanted = runner.final(spec)
    path = address.folder(spec) / "final.safetensors"
    rewritten(path, lambda t: {n: v[..., :1] for n, v in t.items()})
    with pytest.warns(UserWarning, match=r"final.safetensors .*got"):
        found = runner.final(spec)
    for name, value in flatten(wanted.mine).items():
        assert torch.equal(value, flatten(found.mine)[name]), name


def test_who_may_not_write_reads_a_finished_run(monkeypatch):
    """A second user of a shared cache: no lock, and what the umask lets others read."""
    before = os.umask(0o022)
    try:
        first = runner.run(small())
    finally:
        os.umask(before)
    home = address.folder(small())
    kept = [path for path in home.iterdir() if path.name[0] != "."]
    assert len(kept) == 4
    for path in (home, *kept):
        assert path.stat().st_mode & 0o044 == 0o044, path
    monkeypatch.setattr(runner, "locked", lambda *_: pytest.fail("locked to read"))
    monkeypatch.setattr(on_disk, "write", lambda *_: pytest.fail("written"))
    assert_same_log(runner.run(small()), first)
    assert runner.pending([small()]) == []
    assert runner.final(small()).clients == [0, 1, 2, 3]


HALF = '{"train_seconds_per_round": 1, "evaluate_seconds_per_round": -1}'


@pytest.mark.parametrize("text", ["{", "[]", '{"train_seconds_per_round": 1}', HALF])
def test_a_damaged_time_is_no_time(text):
    runner.run(small())
    (address.folder(small()) / "timing.json").write_text(text)
    assert timings.seconds_per_round(small()) is None


def test_nothing_is_lost_when_a_run_diverges(elsewhere, monkeypatch):
    spec = small(rounds=5)
    with monkeypatch.context() as patch:
        watch(patch, "local", poison=3)
        with pytest.raises(NonFiniteError, match="local, round 3, client 0: supervis"):
            runner.run(spec)
    home = address.folder(spec)
    assert checkpoint_round(home / "checkpoint.safetensors") == 2
    assert runner.pending([spec]) == [spec]
    with monkeypatch.context() as patch:
        played = watch(patch, "local")
        found = runner.run(spec)
    assert played == [3, 4, 5]
    assert_same_log(found, elsewhere(spec))


# what is recorded


@pytest.mark.parametrize(
    ("every", "wanted"), [(2, [2, 4, 5]), (5, [5]), (3, [3, 5]), (9, [5])]
)
def test_eval_every_records_these_rounds_and_always_the_last(every, wanted):
    found = runner.run(small(rounds=5, eval_every=every, all_rules_every=1))
    each = runner.run(small(rounds=5, all_rules_every=1))
    assert each.evaluated == [1, 2, 3, 4, 5]
    assert found.evaluated == wanted
    rows = torch.tensor(wanted) - 1
    for model, rule in each.readouts:
        full = each.accuracy(model, rule)
        assert torch.equal(found.accuracy(model, rule), full[rows])
    assert torch.equal(found.log.cohort, each.log.cohort)
    assert torch.equal(found.log.term["supervised"], each.log.term["supervised"])


@pytest.mark.parametrize(("share", "size"), [(0.3, 3), (0.01, 1), (0.96, 10)])
def test_participation_draws_the_stated_cohort_for_all_methods(share, size):
    settings = {"clients": 10, "participation": share, "rounds": 2}
    settings["partition"] = {"shots": 4, "test_shots": 2}
    own = small(**settings)
    logged = runner.run(own).log.cohort
    assert logged.shape == (2, size)
    for row in logged.tolist():
        assert row == sorted(set(row))
        assert set(row) <= set(range(10))
    for name in METHODS:
        fed = federation(small(name, **settings))
        after = itertools.islice(fed.rounds(), 2)
        assert [one.cohort for one in after] == logged.tolist()
    if size < 10:
        other = small(**settings, seed=5)
        drawn = torch.stack([logged, runner.run(other).log.cohort]).flatten(0, 1)
        assert len({tuple(row) for row in drawn.tolist()}) > 1


@pytest.mark.parametrize(
    ("share", "clients", "size"),
    [
        (0.15, 10, 2),
        (0.25, 10, 3),
        (0.35, 10, 4),
        (0.45, 10, 5),
        (0.29, 50, 15),
        (0.05, 10, 1),
        (0.01, 10, 1),
        (0.24, 10, 2),
        (0.26, 10, 3),
        (1.0, 7, 7),
        (0.999, 7, 7),
    ],
)
def test_half_a_client_is_one(share, clients, size):
    """C14: Python's rounding to even makes 2, 2, 4 and 4 of the first four."""
    assert cohort_size(share, clients) == size


def test_between_its_own_evaluations_a_rule_has_no_number():
    """Rounds 1 and 3 read out the global model's head alone, 2, 4 and 5 everything."""
    shared = {"rounds": 5, "participation": 0.5, "clients": 6}
    found = runner.run(small("fedavg", all_rules_every=2, **shared))
    each = runner.run(small("fedavg", all_rules_every=1, **shared))
    assert found.evaluated == each.evaluated == [1, 2, 3, 4, 5]
    assert found.readouts == each.readouts
    some, cheap = torch.tensor([1, 3, 4]), ("global/head_all", "global/head_own")
    for model, rule in each.readouts:
        full, now = each.accuracy(model, rule), found.accuracy(model, rule)
        torch.testing.assert_close(now[some], full[some], equal_nan=True)
        if f"{model}/{rule}" in cheap:
            torch.testing.assert_close(now, full)
            assert not now.isnan().any()
        else:
            assert now[[0, 2]].isnan().all()
    assert torch.equal(found.log.term["supervised"], each.log.term["supervised"])
    for row in found.summary().to_dict("records"):
        accuracy = each.accuracy(row["model"], row["rule"]).nanmean(1)
        used = [1, 2, 3, 4, 5] if row["model"] == "global" else [2, 4, 5]
        if row["rule"].startswith("nearest"):
            used = [2, 4, 5]
        seen = accuracy[torch.tensor(used) - 1]
        assert row["last"] == pytest.approx(float(seen[-1]))
        assert row["best"] == pytest.approx(float(seen.max()))
        assert row["best_round"] == used[int(seen.argmax())]
        assert row["mean_last5"] == pytest.approx(float(seen.mean()))
    assert found.rounds_of_all_rules() == {2, 4, 5}
    curve = reports.curves([found], ("global", "nearest_own"))
    assert curve["round"].tolist() == [2, 4, 5]
    assert reports.curves([found])["round"].tolist() == [1, 2, 3, 4, 5]


def test_methods_are_compared_over_rounds_in_which_all_rules_were_evaluated():
    """Of FedProto every rule is cheap, of FedAvg the head's alone."""
    shared = {"rounds": 5, "all_rules_every": 4}
    found = [runner.run(small(name, **shared)) for name in ("fedproto", "fedavg")]
    assert found[0].rounds_of_all_rules() == {1, 2, 3, 4, 5}
    rows = reports.accuracies(found, shared_rounds=True)
    assert {*rows["best_round"]} <= {4, 5}
    for row in rows.query("data == 'clients'").to_dict("records"):
        result = found[row["method"] == "fedavg"]
        seen = result.accuracy(row["model"], row["rule"])[3:].nanmean(1)
        assert row["best"] == pytest.approx(100 * float(seen.max()))
        assert row["mean_last5"] == pytest.approx(100 * float(seen.mean()))
    assert {*reports.accuracies(found)["best_round"]} - {4, 5}  # else they choose more


@pytest.mark.parametrize("model", ["pooled", "full"])
def test_rules_of_every_round_are_measured_on_the_papers_data(model):
    found = runner.run(small("fedavg", rounds=3, test=model, all_rules_every=2))
    assert not found.accuracy("global", "head_all", model).isnan().any()
    nearest = found.accuracy("personal", "nearest_own").isnan().all(1)
    assert nearest.tolist() == [True, False, False]
    assert not found.summary().isna().any(axis=None)


def test_clients_that_keep_nothing_are_read_out_in_their_rounds_only():
    found = runner.run(small("fedavg", clients=10, participation=0.3, rounds=10))
    last = found.accuracy("personal", "head_all")[-1]
    assert torch.nonzero(~last.isnan()).flatten().tolist() == (
        found.log.cohort[-1].tolist()
    )
    kept = small("fedproto", clients=10, participation=0.3, rounds=10)
    assert not runner.run(kept).accuracy("personal", "head_all").isnan().any()
    final = runner.final(found.spec)
    assert final.clients == found.log.cohort[-1].tolist()
    owner = features(final, "personal", "test").client
    assert owner.unique().tolist() == final.clients


def test_only_the_cohort_trains_and_sends():
    for name in ("fedavg", "fedproto"):
        fed = federation(small(name, clients=10, participation=0.3))
        start = flatten(fed.method.init(fed.ctx)[1])
        after = next(fed.rounds())
        away = torch.tensor([i for i in range(10) if i not in after.cohort])
        for key, value in flatten(after.mine).items():
            mine = value if fed.forgets else value[after.cohort]
            assert len(mine) == 3
            assert not torch.equal(mine, start[key][after.cohort]), key
            if not fed.forgets:
                assert torch.equal(value[away], start[key][away]), key
    fed = federation(small("fedavg", clients=10, participation=0.3))
    after = next(fed.rounds())
    weights = sum(p.numel() for p in fed.ctx.net.module.parameters())
    assert after.sent["up/model"].floats == 3 * weights


def test_run_leaves_the_global_generators_of_numpy_and_python_alone():
    def states():
        return np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002

    before, threads = states(), torch.get_num_threads()
    runner.run(small("fedmps", participation=0.5))
    assert states() == before
    assert torch.get_num_threads() == threads


def test_run_leaves_the_global_generator_of_torch_alone():
    before = torch.get_rng_state()
    runner.run(small("fedmps", participation=0.5))
    assert torch.equal(torch.get_rng_state(), before)


def test_training_leaves_the_global_generator_of_torch_alone():
    fed = federation(small("fedmps", participation=0.5))
    before = torch.get_rng_state()
    stepping = fed.rounds()
    for _ in range(2):
        fed.evaluate(next(stepping))
    assert torch.equal(torch.get_rng_state(), before)


def test_pending_and_the_seconds_of_a_round():
    done, open_ = small(rounds=2), small(rounds=4)
    assert runner.pending([done, open_]) == [done, open_]
    assert timings.seconds_per_round(done) is None
    assert timings.cpu_seconds_per_round(done) is None
    begun = time.perf_counter()
    runner.run(done)
    elapsed = time.perf_counter() - begun
    assert runner.pending([done, open_]) == [open_]
    assert 0 < timings.seconds_per_round(done) <= elapsed / 2
    assert 0 < timings.cpu_seconds_per_round(done) <= elapsed
    timing = {"train_seconds_per_round": 0.5, "evaluate_seconds_per_round": 0.25}
    (address.folder(done) / "timing.json").write_text(json.dumps(timing))
    assert timings.seconds_per_round(done) == 0.75
    assert timings.cpu_seconds_per_round(done) == 0.75  # a run of an earlier version


def test_measure_runs_a_few_rounds_and_keeps_nothing(own_cache, monkeypatch):
    played = watch(monkeypatch, "local")
    clock = iter([10.0, 16.0])
    monkeypatch.setattr(runner, "time", SimpleNamespace(perf_counter=clock.__next__))
    assert runner.measure(small(), count=2) == 3.0
    assert played == [1, 2]
    assert not (own_cache / "runs").exists()


# tables of a result, by hand


@pytest.fixture
def result() -> Result:
    """Return 13 rounds of two clients with 4 and 5 test samples, 7 rounds evaluated."""
    right = [[1, 0], [4, 4], [2, 5], [2, 0], [0, 5], [4, 4], [1, 1]]
    sent = torch.tensor([[5 * t, t] for t in range(1, 14)])
    log = {
        "term/pull": torch.tensor([[t, 3.0 * t] for t in range(1, 14)]),
        "cohort": torch.tensor([[0, 1]] * 13),
        "sent/up/protos": sent,
        "sent/down/protos": 2 * sent,
        "accuracy/personal/head_all": torch.tensor(right).flip(0),
        "accuracy/personal/nearest_own": torch.tensor(right),
        "samples": torch.tensor([[4, 5]] * 7),
        "evaluated": torch.tensor([2, 4, 6, 8, 10, 12, 13]),
    }
    spec = small("fedproto", rounds=13, clients=2, eval_every=2)
    return Result(spec, "key", Log.of(log))


def test_accuracy_is_a_fraction_and_nan_without_samples(result):
    found = result.accuracy("personal", "nearest_own")
    assert found.dtype == torch.float64
    wanted = [(0.25, 0), (1, 0.8), (0.5, 1), (0.5, 0), (0, 1), (1, 0.8), (0.25, 0.2)]
    assert found.tolist() == [list(pair) for pair in wanted]
    result.log.samples[0, 1] = 0
    assert result.accuracy("personal", "nearest_own")[0].isnan().tolist() == [
        False,
        True,
    ]


def test_summary_by_hand(result):
    head, own = result.summary().to_dict("records")
    assert (own["model"], own["rule"]) == ("personal", "nearest_own")
    assert own["is_paper_rule"]
    assert own["last"] == pytest.approx(0.225)
    assert own["best"] == pytest.approx(0.9)
    assert own["best_round"] == 4  # the first of rounds 4 and 12
    assert own["mean_last5"] == pytest.approx((0.75 + 0.25 + 0.5 + 0.9 + 0.225) / 5)
    assert own["std_last"] == pytest.approx(0.025)
    assert own["std_best"] == pytest.approx(0.1)
    assert (head["model"], head["rule"]) == ("personal", "head_all")
    assert not head["is_paper_rule"]
    assert head["last"] == pytest.approx(0.125)
    assert head["std_last"] == pytest.approx(0.125)


def test_how_many_clients_a_mean_is_over_stands_beside_it(result):
    """C15: one without test samples, then one whose model is not kept."""
    both = result.summary()
    assert both["over"].tolist() == [2, 2]
    assert both["who"].tolist() == ["clients"] * 2
    result.log.accuracy["personal/nearest_own"][-1, 0] = NOT_EVALUATED
    assert result.summary()["over"].tolist() == [2, 1]
    assert result.summary()["who"].tolist() == ["clients"] * 2  # it has the model
    result.log.accuracy["personal/head_all"][-1, 0] = NOT_EVALUATED
    assert result.summary()["over"].tolist() == [1, 1]
    assert result.summary()["who"].tolist() == ["participants"] * 2
    result.log.accuracy["personal/head_all"][-1, 0] = 1
    result.log.samples[:, 1] = 0
    result.log.accuracy["personal/nearest_own"][-1] = 0
    found = result.summary()
    assert found["over"].tolist() == [1, 1]
    assert found["who"].tolist() == ["clients"] * 2
    assert found["last"].tolist() == pytest.approx([0.25, 0.0])


def test_payload_by_hand(result):
    found = result.payload()
    assert list(found.columns) == ["round", "direction", "field", "floats", "ints"]
    assert len(found) == 26
    rows = [tuple(row) for row in found.query("round in (1, 13)").to_numpy()]
    assert rows == [
        (1, "up", "protos", 5, 1),
        (1, "down", "protos", 10, 2),
        (13, "up", "protos", 65, 13),
        (13, "down", "protos", 130, 26),
    ]
    assert found["round"].is_monotonic_increasing


def test_terms_by_hand(result):
    found = result.terms()
    assert found.index.tolist() == list(range(1, 14))
    assert found["pull"].tolist() == [2.0 * t for t in range(1, 14)]


def test_an_unknown_readout_names_the_recorded_ones(result):
    told = (
        "accuracy: fedproto has no global/head_all on clients, recorded are "
        "personal/head_all, personal/nearest_own$"
    )
    with pytest.raises(ValueError, match=told):
        result.accuracy("global", "head_all")


def test_clients_of_whom_none_is_tested_are_refused_before_training():
    """45 test images of a class for 100 clients: the run stopped after its round."""
    spec = papers.fedpa(
        "digits",
        "local",
        clients=100,
        rounds=1,
        training={"local_steps": 1},
        partition={"scheme": "lda", "alpha": 0.5},
    )
    with pytest.raises(ValueError, match="clients: got 100, of whom none gets a test"):
        runner.run(spec)
