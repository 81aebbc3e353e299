"""Pages that say how to get each data set, as text of this package."""

from importlib.resources import files

from fedlib.data.catalogue import entry_of


def page_of(name: str) -> str:
    """Return the name of a data set's page, which its variants share."""
    return entry_of(name).guide or name


def guide(name: str) -> str:
    """Return what a data set is and how to get it, step by step."""
    page = files("fedlib.data") / "guides" / f"{page_of(name)}.md"
    return page.read_text(encoding="utf-8")
