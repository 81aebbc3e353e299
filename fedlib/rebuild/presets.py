"""Parameter files: YAML as people mean it, and nothing that costs more than it shows.

PyYAML reads YAML 1.1, in which ``010`` is 8, ``1:30:00`` is 5400 and ``on`` is true,
takes the last of two equal names, and lets a kilobyte of anchors stand for gigabytes.
What it would read so is refused by its line, before anything is made of it.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from fedlib.runs.spec import SettingError

MOST_BYTES = 2**20  # a preset has less than 1 kB
MOST_DEPTH = 16  # of lists and tables inside each other

# What both versions of YAML read alike, of the text that 1.1 does not take for text
PLAIN = {
    "tag:yaml.org,2002:null": re.compile("|null|Null|NULL|~"),
    "tag:yaml.org,2002:bool": re.compile("true|True|TRUE|false|False|FALSE"),
    "tag:yaml.org,2002:int": re.compile("[-+]?(0|[1-9][0-9]*)"),
    "tag:yaml.org,2002:float": re.compile(
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
    ),
    "tag:yaml.org,2002:str": re.compile(r"(?s)(?!0o[0-7]+$).*"),
}


def read_preset(file: Path) -> dict[str, Any]:
    """Return the parameters of a file.

    Raises
    ------
    SettingError
        There is no such file, it is no YAML or larger than a mebibyte, or a line has
        what is read in two ways (``010``, ``1:30:00``, ``1_000``, ``yes``, a date), a
        tag, an anchor, a name twice, or lists inside lists without end.
    """
    shown = "/".join(file.parts[-4:])
    if not file.exists():
        raise SettingError(f"{shown}: no such file; it holds the preset's parameters")
    with open(file, "rb") as opened:
        content = opened.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise SettingError(f"{shown}: larger than {MOST_BYTES} bytes; refused")
    try:
        table = read_yaml(shown, content.decode("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingError(f"{shown}: not YAML: {error}") from error
    if table is None:
        return {}
    if not isinstance(table, dict):
        got = type(table).__name__
        raise SettingError(f"{shown}: got a {got}, expected lines of name: value")
    return table


def read_yaml(shown: str, text: str) -> Any:
    """Return what a text says that is read in one way; ``shown`` is its name in errors.

    Raises
    ------
    SettingError
        A line has one of what ``read_preset`` refuses.
    yaml.YAMLError
        It is no YAML.
    """
    _check_events(shown, text)
    node = yaml.compose(text, yaml.SafeLoader)
    if node is not None:
        _check_node(shown, node)
    return yaml.safe_load(text)


def _refused(shown: str, mark: Any, what: str) -> SettingError:
    return SettingError(f"{shown}, line {mark.line + 1}: {what}")


def _check_events(shown: str, text: str) -> None:
    """Refuse anchors, tags and depth while nothing has been made of the text."""
    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        mark = event.start_mark
        if getattr(event, "anchor", None) is not None:
            what = f"got the anchor {event.anchor!r}, expected the value itself"
            raise _refused(shown, mark, what)
        if getattr(event, "tag", None) is not None:
            what = f"got the tag {event.tag!r}, expected a value without"
            raise _refused(shown, mark, what)
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MOST_DEPTH:
            what = f"got lists or tables more than {MOST_DEPTH} deep"
            raise _refused(shown, mark, what)


def _check_node(shown: str, node: yaml.Node) -> None:
    """Refuse text that is read in two ways, and names that stand twice."""
    if isinstance(node, yaml.ScalarNode):
        pattern = PLAIN.get(node.tag)
        if node.style is None and not (pattern and pattern.fullmatch(node.value)):
            what = (
                f"got {node.value}, which is read in several ways; expected a decimal "
                "number, true, false, null, or text in quotes"
            )
            raise _refused(shown, node.start_mark, what)
    elif isinstance(node, yaml.SequenceNode):
        for inner in node.value:
            _check_node(shown, inner)
    elif isinstance(node, yaml.MappingNode):
        names: set[str] = set()
        for name, inner in node.value:
            if not isinstance(name, yaml.ScalarNode):
                raise _refused(shown, name.start_mark, "got no text as a name")
            if name.value in names:
                what = f"{name.value} stands twice; expected one value"
                raise _refused(shown, name.start_mark, what)
            names.add(name.value)
            _check_node(shown, name)
            _check_node(shown, inner)
