"""Break the code at one place after the other, and see whether a test notices.

    python tools/mutate.py [COUNT] [TEXT ...]

COUNT places (100) are drawn from ``ROOMS``, the same ones each time; with TEXT those
whose line or file has all of them. One process imports the nearest tests of all; for
each place it forks, puts the broken code into the functions, and runs these tests
until one fails. A test that fails without the break as well does not count. Prints a
line for each place, with who noticed it, and the survivors in the end: who survives
needs a test, or a reason in ``REASONS``. Compiled code is broken in a copy of the
project, where it is compiled anew: minutes a place. Needs a system that forks.
"""

import ast
import gc
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from changed_tests import METHODS, ROOT, wanted

ROOMS = ("methods", "baselines", "blocks", "partitions", "core", "runs")
FILES = ("draw/tables.py",)
LONGEST = 60  # seconds of the processor for the tests of one place
STUCK = 300  # seconds for a place that waits for ever, on a busy machine
ANEW = 1200  # seconds for a place in a copy
ELSEWHERE = "no code of it is in use"
# file and broken line -> why no test can, or need, notice
REASONS = {
    (
        "fedlib/core/protos.py",
        "pairs = pairs & ~torch.eye(pairs.shape[(1)], dtype=torch.bool)",
    ): "every table is square",
    (
        "fedlib/blocks/mixtures.py",
        "density = (-(square + normaliser) / 2).unflatten((1), here.shape)",
    ): "the second axis is the last one",
    (
        "fedlib/partitions/common.py",
        "if (kept.mean()) == 0:  # all weight on full clients, or everybody is full",
    ): "it is 0 where the sum is",
}
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

    def known(self) -> bool:
        """Return whether it has a reason to survive."""
        return (self.file, self.text.splitlines()[self.line - 1].strip()) in REASONS

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


def stem(name: str) -> str:
    """Return what the tests of a file have in their names."""
    return Path(name).stem


def nearest(name: str, tests: dict[str, str]) -> list[str]:
    """Return a module's test files: of its name, that name it, of its room, the rest.

    The rest import it, maybe through others.
    """
    files, _ = wanted({name}, tests)
    room = f"tests/{Path(name).parent.name}/"
    near = [f for f in files if stem(name) in f]
    word = re.compile(rf"\b{stem(name)}\b")
    named = sorted(f for f in files if word.search(tests[f]))
    beside = sorted(f for f in tests if f.startswith(room))
    return list(dict.fromkeys([*near, *named, *beside, *files]))


def chosen(place: Place, items: Sequence[pytest.Item], files: list[str]) -> list:
    """Return the tests of a place, in the order of their files.

    A method's cases alone, where a file has those of several.
    """
    name = stem(place.file)

    def fits(item: pytest.Item) -> bool:
        if Path(place.file).parent.name not in METHODS or name in item.nodeid:
            return True
        code = getattr(getattr(item, "function", None), "__code__", None)
        return code is not None and name in code.co_names

    by_file = {f: [i for i in items if i.path == ROOT / f and fits(i)] for f in files}
    return [item for file in files for item in by_file[file]]


def codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a module's functions, inner ones too."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner
            yield from codes(inner)


def put(place: Place, functions: Sequence[FunctionType]) -> bool:
    """Put the broken code into those of a process's functions that are of its file."""
    path = str(ROOT / place.file)
    broken = {
        (c.co_qualname, c.co_firstlineno): c
        for c in codes(compile(place.text, path, "exec", dont_inherit=True))
    }
    changed = 0
    for function in functions:
        old = function.__code__
        new = broken.get((old.co_qualname, old.co_firstlineno))
        if old.co_filename != path or new is None:
            continue
        if len(new.co_freevars) == len(old.co_freevars):
            changed += new != old
            function.__code__ = new
    return changed > 0


def first_failure(
    tests: Sequence[pytest.Item],
    place: Place | None,
    functions: Sequence[FunctionType] = (),
) -> str:
    """Return which test fails first in a process of its own, with a place broken.

    Empty where all are green; what ends or stops the process is told in words.
    """
    out, into = os.pipe()
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_CPU, (LONGEST, LONGEST + 5))
        signal.alarm(STUCK)
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        if place is not None and not put(place, functions):
            os.write(into, ELSEWHERE.encode())
            os._exit(0)
        session = tests[0].session
        for item, following in zip(tests, [*tests[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.testsfailed:
                os.write(into, item.nodeid.encode())
                break
        os._exit(0)
    os.close(into)
    with os.fdopen(out, "rb") as pipe:
        said = pipe.read().decode()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status in (-signal.SIGXCPU, -signal.SIGKILL, -signal.SIGALRM):
        return f"green for {LONGEST} s"
    return said or (f"ended with {status}" if status else "")


def first_failure_in_a_copy(place: Place, files: Sequence[str]) -> str:
    """Return which test fails first in a copy of the project with a place broken."""
    with tempfile.TemporaryDirectory() as home:
        copy = Path(home, ROOT.name)
        copy.mkdir()
        for entry in ROOT.iterdir():
            if entry.name in ("fedlib", "tests"):
                shutil.copytree(entry, copy / entry.name)
            else:
                (copy / entry.name).symlink_to(entry)
        (copy / place.file).write_text(place.text, "utf-8")
        own = {"PYTHONPATH": str(copy), "NUMBA_CACHE_DIR": str(Path(home, "compiled"))}
        pytest_alone = [sys.executable, "-m", "pytest", "-qx", "-m", "not slow"]
        try:
            done = subprocess.run(
                [*pytest_alone, "-p", "no:xdist", "-p", "no:cacheprovider", *files],
                cwd=copy,
                env=os.environ | own,
                stdout=subprocess.PIPE,
                text=True,
                timeout=ANEW,
            )
        except subprocess.TimeoutExpired:
            return f"green for {ANEW} s"
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return failed[1] if failed else ""


class Breaking:
    """Breaks the places once pytest has collected their tests."""

    def __init__(self, places: list[Place], files: dict[str, list[str]]):
        self.places, self.files = places, files
        self.left: list[Place] = []
        self.sound: set[str] = set()  # tests that are green without a break
        self.functions: list[FunctionType] = []  # of all that is imported

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the nearest tests of each place, in place of all tests."""
        items = [i for i in session.items if i.get_closest_marker("slow") is None]
        print(f"{len(items)} tests collected", flush=True)
        # asking some of torch's modules for their class warns
        self.functions = [f for f in gc.get_objects() if type(f) is FunctionType]
        gc.freeze()
        for place in self.places:
            tests = chosen(place, items, self.files[place.file])
            told = self.noticed(tests, place)
            if told == ELSEWHERE:
                told = first_failure_in_a_copy(place, self.files[place.file])
            if not told or told.startswith(("green", "ended")):
                self.left.append(place)
                told = f"SURVIVES ({told or f'{len(tests)} tests'})"
            print(f"{place}: {told}", flush=True)
        return True

    def noticed(self, tests: list[pytest.Item], place: Place) -> str:
        """Return what notices a place: of the tests only those that are sound."""
        while tests:
            told = first_failure(tests, place, self.functions)
            named = [item for item in tests if item.nodeid == told]
            if not named or told in self.sound or not first_failure(named, None):
                self.sound.update(item.nodeid for item in named)
                return told
            tests = [item for item in tests if item.nodeid != told]
        return ""


def main() -> int:
    """Return 1 where a place survives without a reason."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    files = [path for room in ROOMS for path in (ROOT / "fedlib" / room).rglob("*.py")]
    files += [ROOT / "fedlib" / name for name in FILES]
    every = [place for path in sorted(files) for place in places(path)]
    for text in sys.argv[2:]:
        every = [place for place in every if text in str(place)]
    drawn = random.Random(0).sample(every, min(count, len(every)))
    tests = {
        path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
        for path in ROOT.glob("tests/**/test_*.py")
    }
    near = {name: nearest(name, tests) for name in {place.file for place in drawn}}
    breaking = Breaking(drawn, near)
    chosen_files = sorted({file for each in near.values() for file in each})
    pytest.main(["-q", "-s", "-p", "no:xdist", *chosen_files], plugins=[breaking])
    left = [place for place in breaking.left if not place.known()]
    print(
        f"{len(drawn)} of {len(every)} places broken, {len(left)} survive",
        *left,
        sep="\n",
    )
    return 1 if left else 0


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
