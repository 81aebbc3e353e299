"""Which code a result depends on, as a hash that ignores comments and docstrings."""

import ast
import functools
import hashlib
from importlib.util import find_spec
from pathlib import Path

# Code that cannot change a run's numbers: names, places on disk, the check of settings
# (their values are hashed) and the readers of data (their output is hashed).
NOT_HASHED = {
    f"fedlib{part}" for part in ("", ".registry", ".paths", ".files", ".spec", ".data")
}


def module_path(module: str) -> Path:
    """Return the file of a module of fedlib without importing it."""
    found = find_spec(module)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"module: got {module!r}, which has no file")
    return Path(found.origin)


def is_module(name: str) -> bool:
    """Return whether a dotted name is a module, and not something inside one."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is a module without submodules
        return False


def _imports(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            if node.module.split(".")[0] == "fedlib":
                names |= {node.module} | {name for name in inner if is_module(name)}
    return names


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list) or not body or not isinstance(body[0], ast.Expr):
            continue
        constant = body[0].value
        if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
            body[0] = ast.Pass()
    return tree


@functools.cache
def _read(path: Path, changed: int) -> tuple[str, frozenset[str]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imports = frozenset(_imports(tree))
    text = ast.unparse(_without_docstrings(tree))
    return hashlib.sha256(text.encode()).hexdigest()[:16], imports


def source_hashes(*modules: str) -> dict[str, str]:
    """Return a hash of each module's code, with all of fedlib that it imports."""
    waiting, found = list(modules), {}
    while waiting:
        module = waiting.pop()
        if module in found or ".".join(module.split(".")[:2]) in NOT_HASHED:
            continue
        path = module_path(module)
        found[module], imports = _read(path, path.stat().st_mtime_ns)
        waiting.extend(imports)
    return dict(sorted(found.items()))
