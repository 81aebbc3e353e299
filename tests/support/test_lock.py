"""Whether what is installed is what uv.lock says."""

import hashlib

import numpy
import pytest
from click.testing import CliRunner

from fedlib import cli
from fedlib.support import lock, paths

REST = '[[package]]\nname = "not-installed"\nversion = "9.9"\n'


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Write a lock with versions of numpy, of which each platform has one."""
    monkeypatch.setattr(paths, "ROOT", tmp_path)

    def write(*versions: str) -> str:
        rows = [f'[[package]]\nname = "numpy"\nversion = "{v}"\n' for v in versions]
        (tmp_path / "uv.lock").write_text(text := "".join(rows) + REST)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    return write


def test_without_a_lock_there_is_no_hash(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    assert lock.installed() is None


def test_the_locked_versions_have_the_hash_of_the_lock(project):
    told = project("0.1", f"{numpy.__version__}+cpu")
    assert lock.installed() == told
    assert told in CliRunner().invoke(cli.main, ["doctor"]).output


def test_another_version_is_named(project):
    project("0.1", "0.2")
    assert lock.installed() is None
    there = lock.other_versions(paths.ROOT / "uv.lock")
    assert there == [f"numpy {numpy.__version__} (0.1, 0.2 in uv.lock)"]
    output = CliRunner().invoke(cli.main, ["doctor"]).output
    assert "lock         other versions than uv.lock\n" in output
