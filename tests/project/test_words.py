"""Twenty words that CONTRIBUTING names do not stand in the rooms of the methods."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator

from fedlib.support.paths import ROOT

ROOMS = ("methods", "core", "blocks", "baselines")  # more, once they are through


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


def sentences(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of comments and strings."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            yield token.start[0], " ".join(token.string.split())


def against(source: str) -> list[tuple[int, str]]:
    """Return lines of a module and the words that should not stand there."""
    names, prose = words()
    one = re.compile(rf"\b({'|'.join(prose)})\b", re.I)
    return [pair for pair in variables(source) if pair[1] in names] + [
        (line, word) for line, text in sentences(source) for word in one.findall(text)
    ]


def test_there_are_twenty():
    assert sum(map(len, words())) == 20


def test_the_rooms_of_the_methods_do_without_them():
    bad = {
        f"{room}/{path.name}": pairs
        for room in ROOMS
        for path in sorted((ROOT / "fedlib" / room).glob("*.py"))
        if (pairs := against(path.read_text("utf-8")))
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
    field = "class A(NamedTuple):\n    kept: int  # components after\n"
    assert not against(field)
