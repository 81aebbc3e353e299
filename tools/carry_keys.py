"""Carry finished runs over to new keys, where the code moved and no number did.

A key hashes the code that computes, so that a new way to hash, or a function with
another name, orphans every run. This compares the old code with the new by what counts:

    python tools/carry_keys.py OLD figures/cpu [--rounds 3] [--limit 600] [--write]

``OLD`` is a checkout of the old code (``git worktree add OLD COMMIT``). Of each run in
the JSON files it (1) asks the old code for the run's key, which must be the one in the
file, (2) plays the first rounds with the old and with the new code, each in processes
of their own, and compares every bit of the models, the log and the accuracies, and only
then (3) writes the new key into the file, and copies the run's folder in the cache, if
there is one, to its new name. All others are named and left as they are. Without
``--write`` nothing is written. Parameters that changed since the file was written
belong into the parameter files first.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

RAW = argparse.RawDescriptionHelpFormatter
NEW = Path(__file__).resolve().parent.parent

# These run in the old and in the new code, and so use what both have; what one does
# not need it does not import.
SPECS = """
import json, sys
from fedlib.data import DataError

try:
    from fedlib.rebuild import artefacts
    from fedlib.runs import runner as runs
except ImportError:  # before modules had rooms
    from fedlib import artefacts, runs

found = []
for name, preset in json.load(sys.stdin):
    try:
        specs = artefacts.prepare(name, preset).specs
        for spec in {spec.model_dump_json(): spec for spec in specs}.values():
            found.append([name, preset, spec.model_dump(mode="json"), runs.key(spec)])
    except (ValueError, DataError) as error:
        found.append([name, preset, None, " ".join(str(error).split())])
print(json.dumps(found))
"""
KEYS = """
import json, sys
from fedlib.runs import runner as runs
from fedlib.runs.spec import Spec
from fedlib.support.paths import cache_dir

specs = [Spec.model_validate(spec) for spec in json.load(sys.stdin)]
found = [runs.key(spec) for spec in specs]
print(json.dumps([found, str(cache_dir().resolve())]))
"""
PLAY = """
import hashlib, json, sys
import torch

try:
    from fedlib.core.tree import flatten
    from fedlib.runs.federation import federation
    from fedlib.runs.spec import Spec
except ImportError:
    from fedlib.federation import federation
    from fedlib.spec import Spec
    from fedlib.tree import flatten

def bits(tree):
    found = {}
    for name, value in sorted(flatten(tree).items()):
        held = torch.as_tensor(value).detach().cpu().contiguous()
        text = f"{name} {held.dtype} {tuple(held.shape)} ".encode()
        raw = held.view(torch.uint8) if held.ndim else held[None].view(torch.uint8)
        found[name] = hashlib.sha256(text + raw.numpy().tobytes()).hexdigest()
    return found

torch.set_num_threads(1)
asked = json.load(sys.stdin)
spec = Spec.model_validate(asked["spec"])
fed, told = federation(spec), []
for number, after in zip(range(min(asked["rounds"], spec.rounds)), fed.rounds()):
    sent = {name: list(size) for name, size in after.sent.items()}
    told.append([after.cohort, sent, bits(after.terms), bits(after.watched)])
    told.append([bits({"server": after.server, "mine": after.mine, "up": after.up})])
    told.append(bits(fed.evaluate(after)))
print(json.dumps([len(told), hashlib.sha256(json.dumps(told).encode()).hexdigest()]))
"""


def ask(code: str, home: Path, given: Any, limit: float | None = None) -> Any:
    """Return what a program prints that imports fedlib of a checkout.

    Raises
    ------
    subprocess.TimeoutExpired
        It took longer than ``limit`` seconds.
    RuntimeError
        It failed; the message is its last line.
    """
    environment = os.environ | {"PYTHONPATH": str(home), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=home,
        env=environment | {"FEDLIB_DEVICE": "cpu"},
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
    )
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    return json.loads(done.stdout.splitlines()[-1])


def proven(
    spec: dict[str, Any], old: Path, rounds: int, limit: float
) -> tuple[bool, str]:
    """Return whether both codes give the same bits, and in words what was found.

    Parameters
    ----------
    spec : dict
        Settings of the run.
    rounds : int
        How many are played with both.
    limit : float
        Seconds for the rounds of each.
    """
    asked = {"spec": spec, "rounds": rounds}
    try:
        theirs, ours = (ask(PLAY, home, asked, limit) for home in (old, NEW))
    except subprocess.TimeoutExpired:
        return False, f"longer than {limit:g} s"
    except RuntimeError as error:
        return False, str(error)
    if theirs != ours:
        return False, "OTHER NUMBERS"
    return True, f"same bits in {theirs[0] // 3} rounds"


def carried(cache: Path, before: str, after: str) -> bool:
    """Copy a run in the cache to its new key; return whether there was one."""
    there, here = cache / "runs" / before, cache / "runs" / after
    if not (there / "result.safetensors").exists() or here.exists():
        return False
    scratch = here.with_name(f"{after}.carried")
    shutil.copytree(there, scratch, ignore=shutil.ignore_patterns(".lock"))
    scratch.rename(here)
    return True


def main(arguments: list[str] | None = None) -> int:
    """Carry the runs of all JSON files in a folder over; return 1 if some stay."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=RAW)
    parser.add_argument("old", type=Path, help="a checkout of the old code")
    parser.add_argument("figures", type=Path, help="folder with JSON files")
    parser.add_argument("--rounds", type=int, default=3, help="to play with both codes")
    parser.add_argument("--limit", type=float, default=600, help="seconds for them")
    parser.add_argument("--write", action="store_true", help="write the new keys")
    options = parser.parse_args(arguments)
    old = options.old.resolve()
    files = {path: read(path) for path in sorted(options.figures.rglob("*.json"))}
    files = {path: record for path, record in files.items() if record.get("runs")}
    wanted = sorted({(each["artefact"], each["preset"]) for each in files.values()})
    known: dict[str, dict[str, Any]] = {}
    for name, preset, spec, key in ask(SPECS, old, wanted):
        if spec is None:
            print(f"{preset}/{name}: {key}")
        else:
            known[key] = spec
    listed = {run["key"]: run for each in files.values() for run in each["runs"]}
    known = {key: spec for key, spec in known.items() if key in listed}
    keys, cache = ask(KEYS, NEW, list(known.values()))
    after, left = dict(zip(known, keys, strict=True)), 0
    for key, run in listed.items():
        same, words = False, "the old code has no such run"
        if key in known:
            same, words = proven(known[key], old, options.rounds, options.limit)
        if same and options.write:
            for path, record in files.items():
                if any(each["key"] == key for each in record["runs"]):
                    text = path.read_text(encoding="utf-8")
                    text = text.replace(f'"{key}"', f'"{after[key]}"')
                    path.write_text(text, encoding="utf-8")
            if carried(Path(cache), key, after[key]):
                words += ", carried over in the cache"
        left += not same
        about = f"{run['method']} {run['dataset']} {run['seed']}: {words}"
        print(f"{key} -> {after[key] if same else 'left'}: {about}", flush=True)
    print(f"{len(listed) - left} of {len(listed)} runs proven")
    return 1 if left else 0


def read(path: Path) -> dict[str, Any]:
    """Return a JSON file that is a mapping, else nothing."""
    found = json.loads(path.read_text(encoding="utf-8"))
    return found if isinstance(found, dict) else {}


if __name__ == "__main__":
    sys.exit(main())
