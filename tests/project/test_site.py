"""The pages that `make docs` gives to Sphinx, which itself refuses any warning."""

import re

import pytest
import yaml

from fedlib.rebuild import printed
from fedlib.support import paths
from tests.project.test_packaging import MAKEFILE
from tools import site_pages


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    site_pages.gather(folder / "pages")
    return folder / "pages"


def test_every_page_that_the_contents_name_is_there(site):
    index = (site / "index.md").read_text("utf-8")
    named = re.findall(r"^(?:README|[A-Z]+|docs/\w+|notebooks/[\w/]+)$", index, re.M)
    assert len(named) > 20
    for name in named:
        assert any((site / f"{name}{end}").exists() for end in (".md", ".ipynb")), name
    shown = {f"notebooks/learn/{p.stem}" for p in paths.NOTEBOOKS.glob("learn/*.ipynb")}
    assert shown <= set(named)


def test_every_artefact_has_a_page_in_its_paper_s_contents(site):
    for name in paths.artefact_names():
        paper, _, own = name.partition("/")
        page = (site / "notebooks/papers" / f"{name}.md").read_text("utf-8")
        assert f"fedlib rebuild {name} --preset quick" in page
        run = (paths.ROOT / "figures/cpu" / f"{name}.json").exists()
        assert ("**Not run** on real data yet" in page) != run
        contents = (site / "notebooks/papers" / paper / "index.md").read_text("utf-8")
        assert own in contents.splitlines()


def test_a_page_shows_what_is_kept(site):
    page = (site / "notebooks/papers/fedmps/table3.md").read_text("utf-8")
    told = printed.described("cpu/fedmps/table3_curves")
    assert f"![{told}](../../../figures/cpu/fedmps/table3_curves.png)" in page
    assert (paths.ROOT / "figures/cpu/fedmps/table3.md").read_text(
        "utf-8"
    ) in page + "\n"
    assert "Reduced: fashion, 10 of 800 rounds" in page
    assert "\n\nCIFAR-10, the 500 rounds of the released command, best round" in page
    assert page.count("table3_curves_fair.png)") == 1


def test_links_hold(site):
    for page in site.rglob("*.md"):
        if page.is_relative_to(site / "figures"):
            continue
        for target in site_pages.LINK.findall(page.read_text("utf-8")):
            file = target[1].partition("#")[0]
            if not file or re.match(r"[a-z]+:", file):
                continue
            there = site / file[1:] if file.startswith("/") else page.parent / file
            if (paths.ROOT / there.resolve().relative_to(site.resolve())).exists():
                assert there.exists(), (page.name, file)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("[a](../README.md#More)", "[a](../README.md#more)"),
        ("[`x`](../fedlib/cli.py)", "`x`"),
        ("$f[k](x)$ and $p[y](README)$", "$f[k](x)$ and $p[y](README)$"),
        ("[a](https://example.org/b.md#C)", "[a](https://example.org/b.md#C)"),
        (
            "[t](../notebooks/papers/gfpl/table1.ipynb)",
            "[t](../notebooks/papers/gfpl/table1.md)",
        ),
        (
            '[1.5](../figures/cpu/gfpl/table3.csv "best; a=b")',
            '[1.5](../figures/cpu/gfpl/table3.csv "best; a=b")',
        ),
    ],
)
def test_links_are_mended(text, wanted):
    assert site_pages.linked(text, "docs") == wanted


def test_a_table_s_text_is_on_its_artefact_s_page():
    page = site_pages.place("figures/cpu/fedmps/table3_fair.md")
    assert page == "notebooks/papers/fedmps/table3.md"
    assert site_pages.place("results") is None


def test_sphinx_refuses_warnings():
    assert "sphinx-build -q -W --keep-going -c docs build/pages build/site" in MAKEFILE


def test_one_setting_gives_the_site_its_repository(tmp_path, monkeypatch):
    settings = tmp_path / "pyproject.toml"
    settings.write_text("[project]\n")
    assert site_pages.repository(settings) == ""
    address = "https://github.com/reader/fed"
    settings.write_text(f'[project.urls]\nRepository = "{address}/"\n')
    assert site_pages.repository(settings) == address

    text = "[`x`](../fedlib/cli.py#L3) and [y](../README.md)"
    assert site_pages.linked(text, "docs") == "`x` and [y](../README.md)"
    assert site_pages.linked(text, "docs", address) == (
        f"[`x`]({address}/blob/main/fedlib/cli.py#L3) and [y](../README.md)"
    )
    page = "notebooks/learn/fedmps.ipynb"
    assert site_pages.places_to_run(page, "") == ""
    assert site_pages.places_to_run(page, "https://example.org/reader/fed") == ""
    told = site_pages.places_to_run(page, address)
    assert f"(https://mybinder.org/v2/gh/reader/fed/main?labpath={page})" in told
    colab = "https://colab.research.google.com/github/reader/fed/blob/main"
    assert f"({colab}/{page})" in told
    assert "%pip install --quiet ./fed\n%cd fed/notebooks/learn\n" in told


def test_the_site_and_the_citation_name_one_repository():
    citation = yaml.safe_load((paths.ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation.get("repository-code", "") == site_pages.repository()
