"""JupyterLab in a real browser: Run All, a slider, another parameter, Run All again."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from fedlib.support.paths import NOTEBOOKS, ROOT
from tests.project.test_packaging import MAKEFILE

api = pytest.importorskip(
    "playwright.sync_api", reason="playwright is missing: make browser installs it"
)
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "msedge")
FOUND = next(filter(None, map(shutil.which, BROWSERS)), None)
NONE = f"no browser: none of {', '.join(BROWSERS)} is on the path"
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(FOUND is None, reason=NONE),
]

FIRST = "00_start_here"  # is opened by itself
SECONDS = 20 * 60  # of one Run All on a busy machine; alone it takes a minute
BOOK = "jupyterapp.shell.currentWidget"
CELLS = f"{BOOK}.content.model.toJSON().cells"
# Before, the indicator says idle, and what is asked of the kernel is lost.
CONNECTED = f"""async () => {{
    await {BOOK}.context.ready;
    await {BOOK}.sessionContext.ready;
    await {BOOK}.sessionContext.session.kernel.info;
}}"""

DOWN = """it => {
    const before = it.scrollTop;
    it.scrollTop += 0.9 * it.clientHeight;
    return it.scrollTop > before + 1;
}"""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[str]:
    """Serve a copy of the pages as ``make lab`` does, with nobody's settings.

    Yields the address. The page can be asked for its notebook: what is far from the
    part that is seen has no elements to look at. Cells have outputs and no numbers, as
    before a first run.
    """
    pages = tmp_path / "notebooks" / "learn"
    shutil.copytree(NOTEBOOKS / "learn", pages)
    (tmp_path / "fedlib").symlink_to(ROOT / "fedlib")  # that pages link to
    for file in pages.glob("*.ipynb"):
        book = nbformat.read(file, as_version=4)
        for cell in book.cells:
            cell |= {"execution_count": None} if cell.cell_type == "code" else {}
        nbformat.write(book, file)
    own = ("config", "data", "runtime")
    places = {f"JUPYTER_{kind.upper()}_DIR": str(tmp_path / kind) for kind in own}
    quiet = tmp_path / "config/lab/user-settings/@jupyterlab/apputils-extension"
    quiet.mkdir(parents=True)
    text = '{"fetchNews": "false"}'  # and is not asked for
    (quiet / "notification.jupyterlab-settings").write_text(text)
    dropped = ("FEDLIB_CI", "FEDLIB_PROGRESS")
    environment = {k: v for k, v in os.environ.items() if k not in dropped} | places
    known = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(known)
    (options,) = re.findall(r"^lab: .*\n\t\S+ lab (.*)$", MAKEFILE, re.MULTILINE)
    command = [sys.executable, "-m", "jupyterlab", *options.split(), "--no-browser"]
    command += ["--allow-root", "--ServerApp.port=0"]
    command += ["--LabApp.expose_app_in_browser=True"]
    with (tmp_path / "server.log").open("w") as log:
        server = subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=log, stderr=log
        )
    try:
        yield _address(tmp_path / "runtime", server)
    finally:
        server.terminate()
        server.wait(60)


def _address(runtime: Path, server: subprocess.Popen) -> str:
    for _ in range(1200):
        for file in runtime.glob("jpserver-*.json"):
            told = json.loads(file.read_text())
            return f"{told['url']}{{}}?token={told['token']}"
        assert server.poll() is None, "JupyterLab stopped: see server.log"
        time.sleep(0.1)
    raise AssertionError("JupyterLab does not start within two minutes")


class Page:
    """A notebook in a tab, with what a person does to it."""

    def __init__(self, tab, address: str, name: str, pictures: Path):
        self.tab, self.name, self.pictures = tab, name, pictures
        self.runs = 0
        there = f"lab/tree/notebooks/learn/{name}.ipynb"
        tab.goto(address.format("" if name == FIRST else there))
        tab.locator(".jp-NotebookPanel:visible .jp-InputPrompt").first.wait_for()
        tab.evaluate(CONNECTED)
        self.idle()

    def cells(self) -> list[dict]:
        return [c for c in self.tab.evaluate(CELLS) if c["cell_type"] == "code"]

    def idle(self) -> None:
        status = '.jp-Notebook-ExecutionIndicator[data-status="idle"]'
        self.tab.locator(f".jp-NotebookPanel:visible {status}").wait_for()

    def menu(self, *names: str) -> None:
        for name in names:
            entry = self.tab.get_by_role("menuitem", name=name, exact=True)
            entry.locator("visible=true").click()

    def run_all(self) -> list[dict]:
        """Run all cells by the menu, and return them when the last one is through."""
        self.runs += 1
        last = self.runs * len(self.cells())
        self.menu("Run", "Run All Cells")
        for _ in range(SECONDS):
            cells = self.cells()
            errors = [o for c in cells for o in c["outputs"] if "ename" in o]
            assert not errors, (self.name, errors)
            if cells[-1]["execution_count"] == last:
                break
            self.tab.wait_for_timeout(1000)
        else:
            raise AssertionError(f"{self.name}: not through after {SECONDS} s")
        self.idle()
        return self.cells()

    def change(self, old: str, new: str) -> None:
        """Type another value into the cell of the parameters."""
        (parameters,) = [
            c["source"]
            for c in self.cells()
            if "parameters" in c["metadata"].get("tags", [])
        ]
        assert old in parameters
        first = parameters.splitlines()[0]
        editor = self.tab.locator(".jp-CodeCell .cm-content", has_text=first).first
        editor.scroll_into_view_if_needed()
        editor.click()
        self.tab.keyboard.press("ControlOrMeta+A")
        self.tab.keyboard.insert_text(parameters.replace(old, new))
        sources = [c["source"] for c in self.cells()]
        assert parameters.replace(old, new) in sources

    def move(self, slider: str) -> None:
        """Press the arrow on a slider, and wait until its picture is another."""
        cell = self.tab.locator(".jp-CodeCell:visible").filter(
            has=self.tab.locator(".widget-label", has_text=slider)
        )
        picture = cell.locator(".jp-OutputArea img").first
        handle = cell.get_by_role("slider")
        handle.scroll_into_view_if_needed()
        self.look("slider")
        before = picture.get_attribute("src")
        handle.focus()
        self.tab.keyboard.press("ArrowRight")
        api.expect(picture).not_to_have_attribute("src", before, timeout=60_000)
        assert picture.evaluate("image => image.naturalWidth") > 100
        self.look("moved")

    def saved(self, root: Path) -> nbformat.NotebookNode:
        """Save the notebook, and read it from its file."""
        file = root / "notebooks" / "learn" / f"{self.name}.ipynb"
        before = file.stat().st_mtime_ns
        self.tab.keyboard.press("ControlOrMeta+S")
        for _ in range(60):
            if file.stat().st_mtime_ns > before:
                break
            self.tab.wait_for_timeout(1000)
        book = nbformat.read(file, as_version=4)
        nbformat.validate(book)
        return book

    def look(self, what: str) -> None:
        self.tab.screenshot(path=self.pictures / f"{self.name}-{what}.png")

    def look_through(self) -> None:
        """Keep what is seen from the first line to the last, a screen at a time."""
        whole = self.tab.locator(".jp-NotebookPanel:visible .jp-WindowedPanel-outer")
        whole.evaluate("it => it.scrollTop = 0")
        further, screen = True, 0
        while further:
            self.tab.wait_for_timeout(500)
            self.look(f"{screen:02d}")
            further = whole.evaluate(DOWN)
            screen += 1


@pytest.fixture
def page(lab: str, tmp_path: Path) -> Iterator:
    """Return a function that opens a walkthrough by its name."""
    with api.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=FOUND)
        tab = browser.new_page(viewport={"width": 1300, "height": 900})
        tab.set_default_timeout(120_000)
        wrong: list[str] = []
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        yield functools.partial(Page, tab, lab, pictures=tmp_path)
        browser.close()
    assert not wrong


def kinds(cells: list[dict]) -> list[list[str]]:
    """Return what each cell shows: figures, tables, and whether there is text."""
    order = ("image/png", "text/html", "text/latex", "text/markdown", "text/plain")
    shown = []
    for cell in cells:
        data = [o["data"] for o in cell["outputs"] if "data" in o]
        data = [d for d in data if "application/vnd.jupyter.widget-view+json" not in d]
        rich = [next(kind for kind in order if kind in d) for d in data]
        told = any(o.get("name") == "stdout" for o in cell["outputs"])
        shown.append([*rich, "stdout"] if told else rich)
    return shown


def figures(cells: list[dict]) -> list[str]:
    shown = [o.get("data", {}) for c in cells for o in c["outputs"]]
    return [data["image/png"] for data in shown if "image/png" in data]


def kept(name: str) -> list[dict]:
    book = nbformat.read(NOTEBOOKS / "learn" / f"{name}.ipynb", as_version=4)
    return [cell for cell in book.cells if cell.cell_type == "code"]


@pytest.mark.parametrize(
    ("name", "slider", "old", "new"),
    [
        (FIRST, None, "rounds = 12", "rounds = 3"),
        ("fedmps", "tau_2", "rounds = 15", "rounds = 8"),
    ],
)
def test_a_page_is_played_with(
    page, tmp_path: Path, name: str, slider: str | None, old: str, new: str
):
    played = page(name=name)
    first = played.run_all()
    assert kinds(first) == kinds(kept(name))
    assert len(figures(first)) >= 2
    if slider:
        played.move(slider)

    played.change(old, new)
    played.look("changed")
    second = played.run_all()
    played.look_through()
    assert kinds(second) == kinds(first)
    assert figures(second) != figures(first)

    saved = [c for c in played.saved(tmp_path).cells if c.cell_type == "code"]
    assert figures(saved) == figures(second)


def test_a_link_to_code_opens_it(page):
    opened = page(name=FIRST).tab
    opened.get_by_role("link", name="fedlib/core/method.py").first.click()
    first = (ROOT / "fedlib/core/method.py").read_text("utf-8").splitlines()[0]
    opened.locator(".jp-FileEditor:visible", has_text=first).wait_for()
