"""The documentation site: `make docs` gathers its pages and calls Sphinx with this."""

import re
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]

project = "fedlib"
author = "fedlib contributors"
extensions = [
    "myst_nb",
    "autoapi.extension",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx-mathjax-offline",  # MathJax from the site itself
]
exclude_patterns = ["figures"]
suppress_warnings = [
    "autoapi.python_import_resolution",  # names that are imported when asked for
    "ref.python",  # Server and Found: a record of several methods has the same name
]

html_theme = "sphinx_book_theme"
html_title = "fedlib"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_theme_options = {"navbar_persistent": [], "use_download_button": False}
settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
if urls := settings["project"].get(
    "urls"
):  # then pages lead to the repository, notebooks to Colab and Binder
    html_theme_options |= {
        "repository_url": urls["Repository"],
        "repository_branch": "main",
        "use_repository_button": True,
        "use_issues_button": True,
        "launch_buttons": {
            "colab_url": "https://colab.research.google.com",
            "binderhub_url": "https://mybinder.org",
        },
    }

# Notebooks are shown with the outputs that are committed.
nb_execution_mode = "off"
nb_render_markdown_format = "myst"
nb_merge_streams = True
myst_enable_extensions = ["amsmath", "colon_fence", "dollarmath"]
myst_heading_anchors = 4

# Modules are read, not imported: the site needs no torch.
autoapi_dirs = [str(ROOT / "fedlib")]
autoapi_root = "api"
autoapi_options = ["members", "show-module-summary"]
autoapi_add_toctree_entry = False
autoapi_python_class_content = "class"
autoapi_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_rtype = False


def card(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Keep tables and boxes of a module's docstring as they are typed."""
    if what != "module":
        return
    blocks = "\n".join(lines).split("\n\n")
    for number, block in enumerate(blocks):
        if re.search(r"^ |\S {2,}\S|\|", block, re.MULTILINE):
            plain = block.replace("``", "`")  # is not set as code in a block of text
            blocks[number] = ".. code-block:: text\n\n" + re.sub(
                "^", "    ", plain, flags=re.MULTILINE
            )
    lines[:] = "\n\n".join(blocks).split("\n")


def setup(app: Sphinx) -> None:
    """Listen to the event that napoleon listens to."""
    app.connect("autodoc-process-docstring", card)
