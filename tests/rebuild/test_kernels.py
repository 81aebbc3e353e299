"""Kernels: alone, or forked from a process that has done their imports."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fedlib.rebuild import kernels, launch


@pytest.mark.parametrize(
    ("notebooks", "forked"), [(kernels.FEW, False), (kernels.FEW + 1, True)]
)
def test_kernels_of_many_notebooks_are_forked(notebooks, forked):
    before = os.environ.get("JUPYTER_PATH")
    with kernels.own_kernel(notebooks):
        home = Path(os.environ["JUPYTER_PATH"].split(os.pathsep)[0])
        spec = json.loads((home / f"kernels/{kernels.KERNEL}/kernel.json").read_text())
        assert (launch.__file__ in spec["argv"]) == forked
        assert (home / "forks").exists() == forked
    assert os.environ.get("JUPYTER_PATH") == before
    assert not home.exists()


def test_a_launcher_asks_for_a_kernel_and_ends_with_it(tmp_path):
    with (
        tempfile.TemporaryDirectory() as folder,
        socket.socket(socket.AF_UNIX) as forks,
    ):
        place = f"{folder}/forks"
        forks.bind(place)
        forks.listen()
        command = [sys.executable, "-I", "-S", launch.__file__, place, "connection"]
        variables = {"A": "1"}
        with subprocess.Popen(command, cwd=tmp_path, env=variables) as launched:
            talk, _ = forks.accept()
            with talk, talk.makefile() as lines:
                asked = json.loads(lines.readline())
                talk.sendall(str(os.getpid()).encode())
                with pytest.raises(subprocess.TimeoutExpired):
                    launched.wait(0.5)
            assert launched.wait(60) == 0
    connection, where, told = asked
    assert (connection, Path(where)) == ("connection", tmp_path.resolve())
    assert told.items() >= variables.items()
