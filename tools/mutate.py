"""Break the code at one place after the other, and see whether a test notices.

    python tools/mutate.py [COUNT] [TEXT ...]

COUNT places (100) are drawn from ``ROOMS``, the same ones each time; with TEXT those
whose line or file has all of them. Each is broken in a copy of the project, where the
tests run that ``changed_tests`` names for its file, until one fails. Prints a line for
each place and the survivors in the end; who survives needs a test, or a reason.
"""

import ast
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
from changed_tests import ROOT, wanted

ROOMS = ("methods", "baselines", "blocks", "partitions", "core", "runs", "draw")
LONGEST = 900  # seconds for the tests of one place; more counts as noticed
OPERATORS: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
NAMES = {"mean": "sum", "sum": "mean", "amin": "amax", "amax": "amin", "min": "max"}
NAMES |= {"max": "min", "argmax": "argmin"}
NAMES |= {"any": "all", "all": "any", "zeros": "ones", "ones": "zeros"}
DROPPED = {"detach", "clone", "sorted", "abs", "clamp"}  # calls, whose object remains


class Place(NamedTuple):
    """One broken place."""

    file: str  # relative to the project
    line: int
    before: str
    after: str
    text: str  # of the whole broken file

    def __str__(self) -> str:
        """Return where it is and what it does."""
        return f"{self.file}:{self.line}: {self.before} -> {self.after}"


def broken(node: ast.AST) -> ast.AST | None:
    """Return what stands in place of a node; None where it is left."""
    match node:
        case ast.BinOp(left, op, right) if type(op) in OPERATORS:
            return ast.BinOp(left, OPERATORS[type(op)](), right)
        case ast.Compare(left, [op], right) if type(op) in OPERATORS:
            return ast.Compare(left, [OPERATORS[type(op)]()], right)
        case ast.BoolOp(op, values):
            return ast.BoolOp(OPERATORS[type(op)](), values)
        case ast.UnaryOp(ast.USub() | ast.Not(), operand):
            return operand
        case ast.Call(ast.Attribute(value, name)) if name in DROPPED:
            return value
        case ast.Call(ast.Attribute(value, name), given, named) if name in NAMES:
            return ast.Call(ast.Attribute(value, NAMES[name]), given, named)
        case ast.Call(ast.Name("sorted"), [given, *_]):
            return given
        case ast.Call(ast.Name(name), given, named) if name in NAMES:
            return ast.Call(ast.Name(NAMES[name]), given, named)
        case ast.IfExp(test, body, orelse):
            return ast.IfExp(test, orelse, body)
    return None


def inside(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions in functions' bodies: signatures and annotations stay."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            for statement in node.body:
                found = [] if isinstance(statement, ast.FunctionDef) else [statement]
                for part in found:
                    yield from (e for e in ast.walk(part) if isinstance(e, ast.expr))


def places(file: Path) -> Iterator[Place]:
    """Yield every place of a file that can be broken, once."""
    text, name = file.read_text("utf-8"), file.relative_to(ROOT).as_posix()
    lines, seen = text.splitlines(keepends=True), set()
    for node in inside(ast.parse(text)):
        other = broken(node)
        if other is None or node.lineno != node.end_lineno or node in seen:
            continue
        seen.add(node)
        row = node.lineno - 1
        line = lines[row].encode()
        before = line[node.col_offset : node.end_col_offset]
        after = f"({ast.unparse(ast.fix_missing_locations(other))})"
        whole = line.replace(before, after.encode(), 1).decode()
        changed = "".join([*lines[:row], whole, *lines[row + 1 :]])
        yield Place(name, row + 1, before.decode(), after, changed)


def survives(place: Place, copy: Path, tests: dict[str, str]) -> bool:
    """Return whether the nearest tests are green with a place broken."""
    chosen, names = wanted({place.file}, tests)
    path = copy / place.file
    whole = path.read_text("utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not slow"]
    path.write_text(place.text, "utf-8")
    try:
        done = subprocess.run(
            [*command, "-k", names, *chosen],
            cwd=copy,
            capture_output=True,
            timeout=LONGEST,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    finally:
        path.write_text(whole, "utf-8")
    return done.returncode == 0


def main() -> int:
    """Return 1 where a place survives."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    files = [path for room in ROOMS for path in (ROOT / "fedlib" / room).rglob("*.py")]
    every = [place for path in sorted(files) for place in places(path)]
    for text in sys.argv[2:]:
        every = [place for place in every if text in str(place)]
    drawn = random.Random(0).sample(every, min(count, len(every)))
    tests = {
        path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
        for path in ROOT.glob("tests/**/test_*.py")
    }
    left = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        out = shutil.ignore_patterns(".git", ".venv", "build", "__pycache__")
        shutil.copytree(ROOT, copy, ignore=out)
        for place in drawn:
            lives = survives(place, copy, tests)
            print("SURVIVES" if lives else "noticed ", place, flush=True)
            left += [place] if lives else []
    print(f"{len(drawn)} of {len(every)} places broken, {len(left)} survive")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
