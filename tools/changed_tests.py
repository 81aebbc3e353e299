"""Run the tests of what changed since ``main``: committed, edited or new.

    python tools/changed_tests.py [argument of pytest ...]

A changed test file runs whole. A changed module runs the test files that import it or
have its dotted name in a text. A method, and a module that no test imports, runs the
tests that have its name in theirs, such as its cases of the laws. What is reached
through other modules runs with all tests only (``make unit``).
"""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NO_TESTS = 5  # pytest's exit status when it selected none
METHODS = {"methods", "baselines"}  # folders with a file per method


def changed(base: str = "main") -> set[str]:
    """Return the Python files that differ from where this branch left ``base``."""

    def git(*arguments: str) -> list[str]:
        command = ["git", *arguments]
        return subprocess.check_output(command, cwd=ROOT, text=True).splitlines()

    try:
        (since,) = git("merge-base", "HEAD", base)
    except subprocess.CalledProcessError:
        raise SystemExit(f"base: got {base!r}, expected a branch of this one") from None
    names = git("diff", "--name-only", "--diff-filter=d", since)
    names += git("ls-files", "--others", "--exclude-standard")
    return {name for name in names if name.endswith(".py")}


def module(name: str) -> str:
    """Return what the file ``fedlib/methods/fedmps.py`` is imported as."""
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache  # asked again for each file that changed
def words(text: str) -> set[str]:
    """Return the modules that code imports, and the words of its texts."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import():
                found |= {alias.name for alias in node.names}
            case ast.ImportFrom(module=str(home)):
                found |= {home, *(f"{home}.{alias.name}" for alias in node.names)}
            case ast.Constant(value=str(value)):
                found |= set(value.replace(":", " ").split())
    return found


def wanted(files: set[str], tests: dict[str, str]) -> tuple[list[str], str]:
    """Return the test files to run, and which of their tests, for pytest's ``-k``.

    Parameters
    ----------
    files : set of str
        Changed files, relative to the project.
    tests : dict
        The code of all test files, by name.
    """
    known = {name: words(text) for name, text in tests.items()}
    whole, names = files & tests.keys(), set()
    for name in files - whole:
        users = {test for test in tests if module(name) in known[test]}
        whole |= users
        if not users or Path(name).parent.name in METHODS:
            names.add(module(name).split(".")[-1])
    some = {
        test for test, text in tests.items() if any(n in text + test for n in names)
    }
    chosen = sorted({Path(test).name for test in whole} | names)
    return sorted(whole | some), " or ".join(chosen)


def main() -> int:
    """Run pytest with the arguments given, and return its exit status."""
    tests = {
        path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
        for path in ROOT.glob("tests/**/test_*.py")
    }
    files, names = wanted(changed(), tests)
    print("tests of what changed:", names or "none", flush=True)
    if not files:
        return 0
    command = [sys.executable, "-m", "pytest", *sys.argv[1:], "-k", names, *files]
    status = subprocess.call(command, cwd=ROOT)
    return 0 if status == NO_TESTS else status


if __name__ == "__main__":
    sys.exit(main())
