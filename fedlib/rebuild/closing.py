"""How an artefact's notebook ends: what of it is committed, or what that would cost.

The last cells of a notebook in ``notebooks/papers`` are markdown, so that the page has
an end before anybody runs it. ``ending`` writes the first of them; the sentences behind
it are written by hand, and ``tools/claims.py`` holds their numbers to the files.
"""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from fedlib.data import DATASETS
from fedlib.papers import PAPERS
from fedlib.rebuild import printed
from fedlib.rebuild.artefacts import prepare
from fedlib.rebuild.costs import distinct, duration, roughly
from fedlib.registry import title
from fedlib.support import paths

PRESET = "cpu"  # whose files are committed
SAW = "## What we saw"
UP = "../../../"  # from a notebook to the repository
# Endings of a picture's name, the one that stands for its artefact first.
MAIN = ("", "_curves_fair", "_curves", "_change", "_membership")
# Walkthroughs beside that of the paper's method.
LESSONS = {
    "fedmps/fig3": "02_partitions",
    "fedmps/table2": "02_partitions",
    "fedpa/fig3": "02_partitions",
    "fedmps/fig11": "30_privacy",
    "fedpa/leak": "30_privacy",
    "fedpg/fig8": "30_privacy",
    "gfpl/appendix_b": "30_privacy",
    "learn/min_count": "30_privacy",
    "learn/small_cells": "30_privacy",
    "learn/leaderboard": "20_baselines",
    "scoreboard/leads": "00_start_here",
    "scoreboard/papers": "00_start_here",
}
# What computes the artefacts that are no paper's.
FILES = {
    "learn/leaderboard": "fedlib/papers/ours/leaderboard.py",
    "learn/min_count": "fedlib/papers/ours/min_counts.py",
    "learn/small_cells": "fedlib/papers/ours/leaks.py",
    "scoreboard/leads": "fedlib/rebuild/leads.py",
    "scoreboard/papers": "fedlib/rebuild/scoreboard.py",
}


def _base(name: str) -> Path:
    return paths.ROOT / "figures" / PRESET / name


def kept(name: str) -> dict[str, Any] | None:
    """Return the provenance of an artefact's committed files; None without any."""
    file = _base(name).with_suffix(".json")
    return json.loads(file.read_text("utf-8")) if file.exists() else None


def picture(name: str) -> Path | None:
    """Return the committed picture that stands for an artefact."""
    base = _base(name)
    for suffix in MAIN:
        own = base.with_name(f"{base.name}{suffix}.png")
        if own.exists():
            return own
    return min(base.parent.glob(f"{base.name}_*.png"), default=None)


def ran(about: dict[str, Any]) -> str:
    """Return in words what is committed: data, runs, seeds, and what is reduced."""
    data = ", ".join(sorted({entry["title"] for entry in about["data"]}))
    runs, seeds, notes = about["runs"], about["seeds"], about["notes"]
    rounds = sum(run["rounds"] for run in runs)
    words = [data] if data else []
    words.append(size(len(runs), rounds) if runs else "no run is made")
    if len(seeds) == 1:
        words.append(f"**one seed** ({seeds[0]}) and so no spread")
    elif seeds:
        words.append(f"{len(seeds)} seeds ({', '.join(map(str, seeds))})")
    cut = [n["text"].partition(": ")[2] for n in notes if n["kind"] == "reduced"]
    remarks = [n["text"] for n in notes if n["kind"] != "reduced"]
    parts = ["; ".join(words), *([f"Reduced: {'; '.join(cut)}"] if cut else [])]
    return ". ".join([*parts, *(text[:1].upper() + text[1:] for text in remarks)]) + "."


def size(runs: int, rounds: int) -> str:
    """Return ``1 run, 30 rounds``, ``150 runs, 6,000 rounds``."""
    words = ((runs, "run"), (rounds, "round"))
    return ", ".join(f"{n:,} {word}{'' if n == 1 else 's'}" for n, word in words)


def _cost(name: str, preset: str) -> str:
    specs = distinct(prepare(name, preset).specs)
    if not specs:
        return "no run beforehand, its cells do all"
    words = size(len(specs), sum(spec.rounds for spec in specs))
    rough = [roughly(spec) for spec in specs]
    if None in rough:
        return words
    seconds = sum(seconds for seconds in rough if seconds is not None)
    return f"{words}, roughly {duration(seconds)} of training on one core"


def planned(name: str) -> str:
    """Return what a preset's file says of itself, else on what data it runs."""
    text = (paths.PARAMS / PRESET / f"{name}.yaml").read_text("utf-8")
    said = " ".join(re.findall(r"^# ?(.*)", text, re.MULTILINE))
    if said:
        return said
    given = yaml.safe_load(text)
    data = given.get("datasets") or [given["dataset"]]
    return ", ".join(DATASETS[dataset].title for dataset in data)


def _paper(name: str) -> str:
    """Return a link to the paper, under the number that the artefact has in it."""
    words = printed.title(name).partition(":")[0]
    label = f"{title(name.partition('/')[0])}:"
    cited = yaml.safe_load((paths.ROOT / "CITATION.cff").read_text("utf-8"))
    known = [e for e in cited["references"] if e["title"].startswith(label)]
    if len(known) != 1:
        raise ValueError(f"CITATION.cff: got {len(known)} titles with {label!r}, not 1")
    doi, url = known[0].get("doi"), known[0].get("url", f"{UP}CITATION.cff")
    return f"[{words}]({f'https://doi.org/{doi}' if doi else url})"


def links(name: str) -> str:
    """Return where an artefact is printed, taught, computed and judged, as links."""
    paper = name.partition("/")[0]
    of_paper = paper in PAPERS
    lessons = [paper] if of_paper else []
    lessons += [LESSONS[name]] if name in LESSONS else []
    taught = ", ".join(f"[{lesson}](../../learn/{lesson}.ipynb)" for lesson in lessons)
    file = f"fedlib/methods/{paper}.py" if of_paper else FILES[name]
    parts = [f"Printed in {_paper(name)}"] if of_paper else []
    parts += [f"taught in {taught}", f"computed by [{file}]({UP}{file})"]
    page = f"{UP}REPRODUCTION.md" + (f"#{paper}" if of_paper else "")
    text = "; ".join([*parts, f"what we found: [REPRODUCTION]({page})"])
    return text[:1].upper() + text[1:] + "."


def ending(name: str) -> str:
    """Return the text of the cell with which an artefact's notebook closes.

    Where files are committed it has the picture and what is behind it, else what
    running it would take; then links to the paper, the lesson and the code.
    """
    about, parts = kept(name), [SAW]
    if about is None:
        file = f"{UP}params/{PRESET}/{name}.yaml"
        parts.append(
            "**Not run** on real data yet, so nothing was seen: what `quick` shows is "
            f"no evidence for a paper. At [`{PRESET}`]({file}): {planned(name)}; "
            f"{_cost(name, PRESET)}. At the paper's size: {_cost(name, 'paper')}. "
            f"`fedlib estimate {name} --preset {PRESET}` says how long that takes here."
        )
    else:
        drawn = picture(name)
        if drawn is not None:
            words = f"{printed.title(name)}, as committed"
            parts.append(f"![{words}]({UP}{drawn.relative_to(paths.ROOT).as_posix()})")
        settings = f"{UP}figures/{PRESET}/{name}.json"
        parts.append(
            f"Committed, preset `{PRESET}`: {ran(about)} [Settings]({settings}), "
            f"[all files]({UP}docs/artefacts.md)."
        )
    return "\n\n".join([*parts, links(name)])
