"""LEAF's JSON files: users with their samples, read one file after the other.

A file holds ``users`` (names), ``num_samples`` (one number per name) and ``user_data``
(name -> ``x`` and ``y``). Who was left out of ``users`` for having too few samples may
still stand in ``user_data``, empty. A folder holds one or more such files.
"""

import functools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fedlib.data.sources import reading
from fedlib.data.types import DataError


class User(NamedTuple):
    """All samples of one writer or celebrity in one split."""

    name: str
    x: list  # n samples as the file has them
    y: list[int]  # n labels
    file: str  # where they stand, as messages name it


def folders(place: str, *names: str) -> Callable[[Path], list[Path]]:
    """Return a finder of folders with JSON files beneath ``place`` or its ``data``."""

    def find(root: Path) -> list[Path]:
        for base in (root / place, root / place / "data"):
            found = [base / name for name in names]
            if all(any(folder.glob("*.json")) for folder in found):
                return found
        return []

    return find


def users(folder: Path) -> Iterator[User]:
    """Yield the users of all files of a folder; files are sorted by name.

    Raises
    ------
    DataError
        A damaged file; a user who stands in two files, is empty, or has not as many
        samples as stated; a label that is no class.
    """
    first: dict[str, str] = {}
    for path in sorted(folder.glob("*.json")):
        file = f"{folder.name}/{path.name}"
        for user in _checked(_loaded(path), file):
            if user.name in first:
                raise DataError(
                    f"{file}: user {user.name} is also in {first[user.name]}; files of "
                    "one sampling have no user twice, remove those of the other"
                )
            first[user.name] = file
            yield user


def by_sample(train: Path, test: Path) -> tuple[Iterator[User], Iterator[User]]:
    """Return the users of both splits, who must be the same.

    The first iterator has to be used up before the second one is begun.

    Raises
    ------
    DataError
        A user of one split is not in the other: LEAF has sampled by user.
    """
    known: set[str] = set()
    how = "both need the same users: run LEAF's preprocess.sh with -t sample"

    def trained() -> Iterator[User]:
        for user in users(train):
            known.add(user.name)
            yield user

    def tested() -> Iterator[User]:
        left = set(known)
        for user in users(test):
            if user.name not in left:
                raise DataError(
                    f"{user.file}: user {user.name} is not in {train.name}/; {how}"
                )
            left.remove(user.name)
            yield user
        if left:
            raise DataError(
                f"{train.name}/: {len(left)} users such as {min(left)} are not in "
                f"{test.name}/; {how}"
            )

    return trained(), tested()


def _loaded(path: Path) -> dict[str, Any]:
    # pixels are k / 255: one object per value, not per pixel, is kept in memory
    number = functools.lru_cache(maxsize=1024)(float)
    with reading(path), open(path, encoding="utf-8") as file:
        return json.load(file, parse_float=number)


def _checked(content: Any, file: str) -> Iterator[User]:
    """Yield the users of one file, as far as it keeps its promises."""
    names, sizes, data = _parts(content, file)
    try:
        samples = {name: (about["x"], about["y"]) for name, about in data.items()}
    except (AttributeError, KeyError, TypeError) as error:
        raise DataError(f"{file}: expected user_data: name -> x, y") from error
    absent = [name for name in names if name not in samples]
    if absent:
        raise DataError(f"{file}: user {absent[0]} is not in user_data")
    known = set(names)
    extra = [name for name, (x, _) in samples.items() if x and name not in known]
    if extra:
        raise DataError(f"{file}: user {extra[0]} has samples but is not in users")
    for name, size in zip(names, sizes, strict=True):
        x, y = samples[name]
        if problem := _problem(x, y, size):
            raise DataError(f"{file}: user {name}{problem}")
        yield User(str(name), x, [int(label) for label in y], file)


def _parts(content: Any, file: str) -> tuple[list[str], list, dict]:
    """Return names, sizes and data of a file's users, of which none stands twice."""
    keys = ("users", "num_samples", "user_data")
    if not isinstance(content, dict) or not all(key in content for key in keys):
        raise DataError(f"{file}: expected an object with {', '.join(keys)}")
    names, sizes, data = (content[key] for key in keys)
    for key, kind in zip(keys, (list, list, dict), strict=True):
        if not isinstance(content[key], kind):
            raise DataError(f"{file}: {key} is no {kind.__name__}")
    strange = [name for name in names if not isinstance(name, str)]
    if strange:
        raise DataError(f"{file}: got {strange[0]!r} for a user, expected text")
    if len(names) != len(sizes):
        raise DataError(f"{file}: {len(names)} users, {len(sizes)} num_samples")
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise DataError(f"{file}: user {twice[0]} stands twice in users")
    return names, sizes, data


def _problem(x: Any, y: Any, size: Any) -> str:
    """Return what is wrong with a user's samples and labels; empty for nothing."""
    if not (isinstance(x, list) and isinstance(y, list)):
        return ": expected lists x and y"
    if not x:
        return " has no samples"
    if not len(x) == len(y) == size:
        return f" has {len(x)} samples and {len(y)} labels, num_samples says {size}"
    wrong = [label for label in y if not _is_class(label)]
    return f" has the label {wrong[0]!r}, expected 0, 1, ..." if wrong else ""


def _is_class(label: Any) -> bool:
    """Return whether a label is a whole number; LEAF writes CelebA's as 0.0 and 1.0."""
    return isinstance(label, int | float) and 0 <= label < 2**31 and label % 1 == 0
