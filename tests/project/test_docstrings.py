"""A docstring's parameters are those that its function takes."""

import ast
import re

from fedlib.support.paths import ROOT

SECTION = re.compile(r"^Parameters\n-+\n(.*?)(?=\n\n?\w+\n-+\n|\Z)", re.M | re.S)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def described(function: Function) -> list[str]:
    """Return the names under a docstring's heading, ``a, b : int`` as two."""
    section = SECTION.search(ast.get_docstring(function) or "")
    lines = section[1].splitlines() if section else []
    heads = [line.split(" : ")[0] for line in lines if line[:1].strip()]
    return [name.strip(" *") for head in heads for name in head.split(",")]


def strangers(source: str) -> list[tuple[str, str]]:
    """Return functions of a module and what they describe without taking it."""
    functions = [n for n in ast.walk(ast.parse(source)) if isinstance(n, Function)]
    return [
        (function.name, name)
        for function in functions
        for name in described(function)
        if name
        not in {n.arg for n in ast.walk(function.args) if isinstance(n, ast.arg)}
    ]


def test_a_docstring_names_arguments_that_are_there():
    bad = {
        str(path.relative_to(ROOT)): pairs
        for folder in ("fedlib", "tools")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if (pairs := strangers(path.read_text("utf-8")))
    }
    assert not bad


def test_a_stranger_is_seen_among_arguments_and_in_no_other_section():
    text = "Do.\n\n    Parameters\n    ----------\n    a, b : int\n        {}\n    *c"
    text += "\n\n    Returns\n    -------\n    d : int\n    "
    assert strangers(f'def f(a, *c):\n    """{text}"""\n') == [("f", "b")]
    assert strangers(f'def f(a, b, *c):\n    """{text}"""\n') == []
