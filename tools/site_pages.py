"""Gather the pages of the documentation site in one folder, laid out as the repository.

python tools/site_pages.py build/pages

Each table and figure gets a page of what is committed of it in ``figures/cpu``. Links
to what the site does not hold lead to the repository whose address ``pyproject.toml``
has under ``project.urls``; without one they become plain text, and walkthroughs have no
line of places to run them in.
"""

import json
import os
import re
import shutil
import sys
import tomllib
from pathlib import Path

from fedlib.rebuild import printed
from fedlib.support import paths
from fedlib.support.files import write_text

ROOT = paths.ROOT
TEXTS = ("README", "REPRODUCTION", "SOURCES", "NOTATION", "CONTRIBUTING", "CHANGELOG")
TEXTS += ("SECURITY", "CODE_OF_CONDUCT")
KEPT = "figures/cpu"  # copied whole: pictures, and files to download
LONGEST = 20_000  # characters of a table that its page shows
LINK = re.compile(
    r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)((?: \"[^\"]*\")?)\)"
)
GITHUB = "https://github.com/"
FOLDERS = {"learn": "Ours, of no paper", "scoreboard": "Scoreboard"}


def place(target: str) -> str | None:
    """Return where the site has a file of the repository, or None.

    A table's own text is on the page of its notebook.
    """
    file = Path(target)
    if target.startswith("notebooks/papers/") and file.suffix == ".ipynb":
        return str(file.with_suffix(".md"))
    if target.startswith(KEPT + "/") and file.suffix == ".md":
        paper = file.parent.name
        own = [
            n for n in paths.artefact_names() if f"{paper}/{file.stem}".startswith(n)
        ]
        return f"notebooks/papers/{max(own, key=len)}.md" if own else None
    if target == "docs" or target == f"{KEPT}":
        return "docs/artefacts.md"
    kept = (KEPT + "/", "figures/bench/", "notebooks/learn/", "docs/")
    held = target.startswith(kept) or target in {f"{text}.md" for text in TEXTS}
    return target if held and (ROOT / target).is_file() else None


def repository(settings: Path = ROOT / "pyproject.toml") -> str:
    """Return the address of the repository, or nothing where none is known."""
    project = tomllib.loads(settings.read_text("utf-8"))["project"]
    return project.get("urls", {}).get("Repository", "").rstrip("/")


def places_to_run(page: str, address: str) -> str:
    """Return a line of links that open a notebook of a repository elsewhere."""
    if not address.startswith(GITHUB):
        return ""
    own, name = address.removeprefix(GITHUB), address.rpartition("/")[2]
    colab = f"https://colab.research.google.com/github/{own}/blob/main/{page}"
    binder = f"https://mybinder.org/v2/gh/{own}/main?labpath={page}"
    steps = [f"!git clone --depth 1 {address}", f"%pip install --quiet ./{name}"]
    steps += [f"%cd {name}/{Path(page).parent.as_posix()}"]
    return (
        f"Run it in [Binder]({binder}), or in [Colab]({colab}) with a first cell of\n\n"
        "```text\n" + "\n".join(steps) + "\n```"
    )


def linked(text: str, folder: str, address: str = "") -> str:
    """Return Markdown of a page in ``folder`` with links that hold on the site.

    What the site has not is linked in the repository at ``address``, if there is one.
    """

    def mended(found: re.Match) -> str:
        words, target, title = found.groups()
        file, _, anchor = target.partition("#")
        if not file or re.match(r"[a-z]+:", target):
            return found[0]
        whole = os.path.normpath(Path(folder, file)).replace(os.sep, "/")
        if not (ROOT / whole).exists():  # a formula, not a link
            return found[0]
        there = place(whole)
        if there is None and address:
            there = f"{address}/blob/main/{whole}{'#' + anchor if anchor else ''}"
            return f"[{words}]({there}{title})"
        if there is None:
            return words
        near = os.path.relpath(there, folder or ".").replace(os.sep, "/")
        # Jupyter's anchors have capitals, Sphinx's have none
        return f"[{words}]({near}{'#' + anchor.lower() if anchor else ''}{title})"

    return LINK.sub(mended, text)


def artefact(name: str) -> str:
    """Return the page of a table or figure: its notebook's claim and end, its files.

    The picture of the end is left to the files, which have them all.
    """
    notebook = json.loads(
        (paths.NOTEBOOKS / "papers" / f"{name}.ipynb").read_text("utf-8")
    )
    texts = {cell["id"]: "".join(cell["source"]) for cell in notebook["cells"]}
    ends = (texts.get(each, "") for each in printed.CLOSING)
    parts = ["".join(notebook["cells"][0]["source"])]
    parts += [re.sub(r"^!\[.*\n\n", "", text, flags=re.M) for text in ends if text]
    if shown := _shown(ROOT / KEPT / name):
        parts += ["## What is kept", *shown]
    commands = [
        f"fedlib rebuild {name} --preset quick   # embedded digits",
        f"fedlib rebuild {name} --preset cpu     # real data",
        f"fedlib estimate {name} --preset paper  # what full size costs here",
    ]
    parts += ["## Rebuild it", "```sh\n" + "\n".join(commands) + "\n```"]
    for preset in ("cpu", "paper"):
        file = paths.PARAMS / preset / f"{name}.yaml"
        if file.exists():
            text = file.read_text("utf-8").strip()
            parts.append(f"Settings of the preset `{preset}`:\n\n```yaml\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def _shown(base: Path) -> list[str]:
    """Return pictures and tables of an artefact, with their files."""
    parts, near = [], os.path.relpath(base.parent, paths.NOTEBOOKS / "papers" / "x")
    stems = sorted({file.stem for file in _files(base)})
    for stem in stems:
        files = {file.suffix: file for file in _files(base) if file.stem == stem}
        if ".png" in files:
            told = printed.described(f"cpu/{base.parent.name}/{stem}")
            parts.append(f"![{told}]({near}/{stem}.png)")
        if ".md" in files:
            table = files[".md"].read_text("utf-8").strip()
            if len(table) < LONGEST:
                parts.append(table)
        offered = [e for e in (".csv", ".tex", ".pdf", ".json") if e in files]
        links = ", ".join(f"[{end[1:]}]({near}/{stem}{end})" for end in offered)
        parts.append(f"`{stem}`: {links}")
    return parts


def _files(base: Path) -> list[Path]:
    """Return an artefact's files, those of a longer name's artefact left out."""
    others = [n.rpartition("/")[2] for n in paths.artefact_names()]
    longer = [n for n in others if n.startswith(base.name + "_")]
    found = [*base.parent.glob(f"{base.name}.*"), *base.parent.glob(f"{base.name}_*")]
    return [f for f in found if not any(f.stem.startswith(n) for n in longer)]


def gather(target: Path, address: str = "") -> None:
    """Write all pages and files of the site to a folder, which is emptied first."""
    shutil.rmtree(target, ignore_errors=True)
    for folder in (KEPT, "figures/bench", "notebooks/learn"):
        ignored = shutil.ignore_patterns(".*")
        shutil.copytree(ROOT / folder, target / folder, ignore=ignored)
    for file in sorted((target / "notebooks/learn").rglob("*.ipynb")):
        _relink(file, file.relative_to(target).as_posix(), address)
    for text in TEXTS:
        file = Path(f"{text}.md")
        _page(target / file, (ROOT / file).read_text("utf-8"), "", address)
    for file in sorted((ROOT / "docs").glob("*.md")):
        text = file.read_text("utf-8")
        _page(target / "docs" / file.name, text, "docs", address)
    (target / "docs" / "index.md").rename(target / "index.md")
    _papers(target, address)


def _papers(target: Path, address: str) -> None:
    folders: dict[str, list[str]] = {}
    for name in paths.artefact_names():
        page = f"notebooks/papers/{name}.md"
        _page(target / page, artefact(name), str(Path(page).parent), address)
        folders.setdefault(name.partition("/")[0], []).append(name.partition("/")[2])
    for folder, names in folders.items():
        title = (
            FOLDERS.get(folder)
            or re.split("[,:]", printed.title(f"{folder}/{names[0]}"))[0]
        )
        tree = "\n".join(sorted(names, key=_order))
        text = f"# {title}\n\n```{{toctree}}\n{tree}\n```\n"
        write_text(target / "notebooks" / "papers" / folder / "index.md", text)


def _order(name: str) -> tuple[str, int]:
    word, digits = re.fullmatch(r"(.*?)(\d*)", name).groups()  # type: ignore[union-attr]
    return word, int(digits or 0)


def _page(file: Path, text: str, folder: str, address: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, linked(text, folder, address))


def _relink(file: Path, page: str, address: str) -> None:
    folder = str(Path(page).parent)
    notebook = json.loads(file.read_text("utf-8"))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = linked("".join(cell["source"]), folder, address)
    first = notebook["cells"][0]
    first["source"] = f"{first['source']}\n\n{places_to_run(page, address)}".rstrip()
    write_text(file, json.dumps(notebook, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    gather(Path(sys.argv[1]), repository())
