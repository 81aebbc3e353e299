"""Twenty words that CONTRIBUTING names do not stand in the rooms that are through."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator

from fedlib.support.paths import ROOT

METHODS = ("methods", "core", "blocks", "baselines")
OTHERS = ("runs", "draw", "learn", "rebuild", "papers")


def words() -> tuple[list[str], list[str]]:
    """Return the words that no variable is called by, and those of no sentence."""
    table = (ROOT / "CONTRIBUTING.md").read_text("utf-8").split("| twenty words |")[1]
    names, prose = (row.split("|")[1] for row in table.split("\n")[2:4])
    return re.findall("`(.*?)`", names), [word.strip() for word in prose.split(",")]


def variables(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and name of all that functions assign or take; no record's fields."""
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.Lambda):
            for node in ast.walk(function):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    yield node.lineno, node.id
                elif isinstance(node, ast.arg):
                    yield node.lineno, node.arg


def sentences(source: str, messages: bool) -> Iterator[tuple[int, str]]:
    """Yield line and text of comments, docstrings and other strings (messages)."""
    spoken = {
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        string = token.type == tokenize.STRING
        if token.type == tokenize.COMMENT or (
            string and (messages or token.start[0] in spoken)
        ):
            yield token.start[0], " ".join(token.string.split())


def against(source: str, *, messages: bool = True) -> list[tuple[int, str]]:
    """Return lines of a module and the words that should not stand there.

    Without ``messages`` the strings that it prints are left alone: a command's output
    is read by others, and stands in pages.
    """
    names, prose = words()
    one = re.compile(rf"\b({'|'.join(prose)})\b", re.I)
    return [pair for pair in variables(source) if pair[1] in names] + [
        (line, word)
        for line, text in sentences(source, messages)
        for word in one.findall(text)
    ]


def test_there_are_twenty():
    assert sum(map(len, words())) == 20


def test_rooms_do_without_them():
    bad = {
        f"{room}/{path.name}": pairs
        for room in (*METHODS, *OTHERS)
        for path in sorted((ROOT / "fedlib" / room).rglob("*.py"))
        if (pairs := against(path.read_text("utf-8"), messages=room in METHODS))
    }
    assert not bad


def test_a_word_is_seen_as_a_variable_and_in_a_sentence():
    source = 'def f(told):\n    """Goes\n    on."""\n    kept = told  # thus\n'
    assert sorted(set(against(source))) == [
        (1, "told"),
        (2, "Goes on"),
        (4, "kept"),
        (4, "thus"),
    ]
    printed = 'echo("goes on from there")\n'
    assert against(printed) == [(1, "goes on")]
    assert not against(printed, messages=False)
    field = "class A(NamedTuple):\n    kept: int  # components after\n"
    assert not against(field)
