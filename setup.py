"""What pyproject.toml cannot say: a wheel takes along what ``fedlib rebuild`` reads."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

FOLDERS = ("notebooks/papers", "params", "results")


class WithNotebooks(build_py):
    """Copies notebooks, parameters and stored runs to ``fedlib/shipped``."""

    def run(self) -> None:
        """Build the package; installed as editable, it reads the repository itself."""
        super().run()
        if self.editable_mode:
            return
        shipped = Path(self.build_lib) / "fedlib" / "shipped"
        shutil.rmtree(shipped, ignore_errors=True)  # of an earlier build
        for folder in FOLDERS:
            hidden = shutil.ignore_patterns(".*")
            shutil.copytree(folder, shipped / folder, ignore=hidden)


setup(cmdclass={"build_py": WithNotebooks})
