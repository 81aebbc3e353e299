"""Write ``docs/artefacts.md``: every printed figure and table, and what is kept of it.

python tools/artefact_page.py
"""

import json
from pathlib import Path

from fedlib.rebuild import printed
from fedlib.support import paths
from fedlib.support.files import write_text

PAGE = paths.ROOT / "docs" / "artefacts.md"
HEAD = """# Every figure and table

Written by `make results`. Data, runs and files are those that are committed in
`figures/cpu`: what `fedlib rebuild NAME --preset cpu` computes on real data, mostly at
a reduced budget. `fedlib estimate NAME --preset paper` says what full size costs on
your machine, `fedlib list artefacts --preset cpu` what is current.

| notebook | prints | data | runs | kept |
|---|---|---|---|---|
"""
NONE = """
Not here, or not under its own number:

| printed | where, or why not |
|---|---|
"""


def _row(name: str) -> str:
    base = paths.ROOT / "figures" / "cpu" / name
    about, data, cost = base.with_suffix(".json"), "", "not run"
    if about.exists():
        found = json.loads(about.read_text(encoding="utf-8"))
        data = ", ".join(sorted({each["title"] for each in found["data"]}))
        rounds = sum(run["rounds"] for run in found["runs"])
        cost = f"{len(found['runs'])}, {rounds:,} rounds" if found["runs"] else "none"
    files = [base.with_suffix(ending) for ending in (".png", ".md", ".csv", ".json")]
    files += sorted(base.parent.glob(f"{base.name}_*.png"))
    shown = {file: file.name.removeprefix(base.name)[1:] for file in files}
    kept = " ".join(_link(text, f) for f, text in shown.items() if f.exists())
    notebook = _link(name, paths.NOTEBOOKS / "papers" / f"{name}.ipynb")
    return f"| {notebook} | {printed.title(name)} | {data} | {cost} | {kept} |"


def _link(text: str, file: Path) -> str:
    """Return a link; a picture's says what it shows."""
    place = file.relative_to(paths.ROOT)
    told = ""
    if file.suffix == ".png":
        words = printed.described(
            place.relative_to("figures").with_suffix("").as_posix()
        )
        told = f' "{words}"'
    return f"[{text}](../{place.as_posix()}{told})"


def page() -> str:
    """Return the page as Markdown."""
    rows = [_row(name) for name in paths.artefact_names()]
    others = [
        f"| {name} | {f'in {e.instead}: ' if e.instead else ''}{e.why} |"
        for name, e in printed.elsewhere().items()
    ]
    return HEAD + "\n".join(rows) + "\n" + NONE + "\n".join(others) + "\n"


if __name__ == "__main__":
    write_text(PAGE, page())
