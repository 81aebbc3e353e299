"""Write the README's results section from the scoreboard in ``figures/cpu``."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BOARD = Path("figures/cpu/scoreboard")
BEGIN = "<!-- results: written by `make results`, do not edit -->\n"
END = "<!-- end of results -->\n"


def section(root: Path = ROOT) -> str:
    """Return the section: how many numbers came out again, and which orderings."""
    names = ("papers", "papers_orderings", "papers_ran")
    tables = [(root / BOARD / f"{name}.md").read_text("utf-8") for name in names]
    papers = sorted(root.glob(f"{BOARD}/papers_*.png"))
    pictures = ", ".join(
        f"[{path.stem.removeprefix('papers_')}]({path.relative_to(root).as_posix()})"
        for path in papers
    )
    return f"""
Every number of the papers' tables against ours, at the preset `cpu`: real data. A
number's run is any run of its setting, whichever artefact made it, by the paper's own
reading of the method; the released code's (`variant="reference"`) stands beside it, or
alone as *reference only*. *Reproduced* is within twice the paper's standard deviation
over runs, or 1.5 points where that is more; counts must be equal. *Reduced* ran at a
smaller budget and is not judged. Settings that papers tabulate are not counted: tests
hold them. Field by field: {pictures}.

{tables[0]}
Where two methods or more of a setting ran, their order (*level*: within 1.5 points of
each other here):

{tables[1]}
<details><summary>The numbers that ran</summary>

{tables[2]}
</details>

"""


def written(readme: str, text: str) -> str:
    """Return a README with the section between its two marks replaced.

    Raises
    ------
    ValueError
        A mark is missing, or there twice.
    """
    for mark in (BEGIN, END):
        if readme.count(mark) != 1:
            raise ValueError(f"README.md: got {readme.count(mark)} of {mark!r}, not 1")
    before, rest = readme.split(BEGIN)
    return before + BEGIN + text + END + rest.split(END)[1]


if __name__ == "__main__":
    readme = ROOT / "README.md"
    text = written(readme.read_text("utf-8"), section())
    readme.write_text(text, "utf-8", newline="\n")
