"""Parameter files: what YAML 1.1 reads otherwise than people do is refused by line."""

import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlib.rebuild.presets import MOST_BYTES, read_preset
from fedlib.runs.spec import SettingError
from fedlib.support.paths import PARAMS


@pytest.fixture
def preset(tmp_path):
    """Return a function that reads a text as a parameter file."""

    def read(text: str | bytes) -> dict:
        file = tmp_path / "params/quick/toy/one.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_preset(file)

    return read


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("rounds: 010", "010"),
        ("rounds: 0o10", "0o10"),
        ("rounds: 0b10", "0b10"),
        ("rounds: 0x10", "0x10"),
        ("rounds: 1_000", "1_000"),
        ("rounds: 1:30:00", "1:30:00"),
        ("rate: 1:30.5", "1:30.5"),
        ("rate: .inf", ".inf"),
        ("rate: .NaN", ".NaN"),
        ("on_gpu: yes", "yes"),
        ("on_gpu: Off", "Off"),
        ("day: 2020-01-02", "2020-01-02"),
        ("seeds: [1, 010]", "010"),
        ("table: {a: {b: 010}}", "010"),
        ("no: 3", "no"),
        ("<<: {rounds: 3}", "<<"),
        ("rounds: 4\nseeds: [1]\nrounds: 5", "line 4: rounds stands twice"),
        ("table: {a: 1, a: 2}", "a stands twice"),
        ("? [a]\n: 3", "no text as a name"),
        ("rounds: &r 3", "the anchor 'r'"),
        ("a: &r [1]\nb: *r", "the anchor 'r'"),
        ("rounds: !!int 3", "the tag 'tag:yaml.org,2002:int'"),
        ("x: !!python/object/apply:os.system [ls]", "the tag"),
        ("x: !own 3", "the tag"),
        ("x: " + "[" * 5000, "deep|not YAML"),
        ("x: " + "[" * 30 + "]" * 30, "more than 16 deep"),
        ("x: " + "{a: " * 30 + "1" + "}" * 30, "more than 16 deep"),
        (LAUGHS, "the anchor 'a'"),
        ("- 1", "got a list, expected lines"),
        ("just text", "got a str, expected lines"),
        ("a: 1\n---\nb: 2", "not YAML"),
        ("a: [", "not YAML"),
        (b"a: \xff", "not YAML"),
        ("#" * (MOST_BYTES + 1), "larger than"),
    ],
)
def test_what_is_read_in_two_ways_is_refused(preset, line, told):
    begun = time.perf_counter()
    text = line if isinstance(line, bytes) else f"# first\n{line}"
    with pytest.raises(SettingError, match=told) as refused:
        preset(text)
    assert str(refused.value).startswith("params/quick/toy/one.yaml")
    assert len(str(refused.value)) < 1000
    assert time.perf_counter() - begun < 5


def test_what_has_one_meaning_is_read(preset):
    text = (
        "rounds: 40\nlr: 1e-3\nrate: 0.5\nlow: -0.25\nzero: 0\nnone: null\nempty:\n"
        "flag: false\nword: '010'\nday: \"2020-01-02\"\n"
        "table: {a: [1, 2]}\nname: off1\n"
    )
    assert preset(text) == {
        **{"rounds": 40, "lr": "1e-3", "rate": 0.5, "low": -0.25, "zero": 0},
        **{"none": None, "empty": None, "flag": False, "word": "010"},
        **{"day": "2020-01-02", "table": {"a": [1, 2]}, "name": "off1"},
    }
    assert preset("# nothing\n") == {}


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(-1e9, 1e9) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(min_size=1), inner),
        max_leaves=8,
    )
)
def test_what_yaml_writes_is_read_back_or_refused(tmp_path_factory, value):
    file = tmp_path_factory.mktemp("yaml") / "one.yaml"
    file.write_text(yaml.safe_dump({"x": value}), encoding="utf-8")
    try:
        assert read_preset(file) == {"x": value}
    except SettingError:
        pass


def test_every_preset_is_read_as_before():
    files = sorted(PARAMS.glob("[qcp]*/*/*.yaml"))
    assert len(files) > 100
    for file in files:
        text = Path(file).read_text(encoding="utf-8")
        assert read_preset(file) == (yaml.safe_load(text) or {}), file
