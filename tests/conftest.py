"""Shared fixtures: a cache of its own for every test, one thread, toy federations."""

import os
import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from fedlib.core import nets
from fedlib.core.method import Context, Method
from fedlib.core.rng import generator
from fedlib.core.shards import Shards
from fedlib.core.training import Training
from fedlib.support.paths import ROOT
from fedlib.support.sources import definitions, files, home, modules, walk

torch.set_num_threads(1)

# method -> settings of its toy federation: what servers do many steps of, they do few
TOY: dict[str, dict] = {
    "gfpl": {"first_exchange": 1, "exchange_every": 1, "components": 2},
    "fedpa": {"generator_steps": 3},
    "fedtgp": {"server_epochs": 3},
    "fedhpro": {"hyper_steps": 3, "retrain_steps": 3, "retrain_epochs": 3},
    "fedpg": {
        "generator_steps": 3,
        "generator_batch_size": 8,
        "virtual_per_class": 4,
        "noise_size": 8,
    },
    "fedgen": {"generator_steps": 3},
    "vhl": {"virtual_per_class": 8, "v_batch_size": 16, "width": 8, "style_size": 8},
}

# method -> training other than SGD at 0.1, where its paper's losses need another
TOY_TRAINING = {
    "fedpa": Training(optimiser="adam", learning_rate=0.003, local_steps=20),
    "fedgen": Training(optimiser="adam", learning_rate=0.003, local_steps=20),
    "fedhpro": Training(learning_rate=0.02, momentum=0.0, local_epochs=2),
    # the released notebook's weight of 20 diverges without
    "fedpg": Training(learning_rate=0.1, clip=5.0),
}


def toy_net(method: str) -> str:
    """Return the net of a toy federation: FedMPS lives on unit embeddings."""
    return "digits_cnn" if method == "fedmps" else "digits_linear"


def pytest_terminal_summary(terminalreporter) -> None:
    """Print what replays and ``make chaos`` measured, where these were asked for."""
    asked = {"chaos"} if os.environ.get("CHAOS") else set()
    if "replay" in terminalreporter.config.option.keyword:
        asked.add("replay")
    for report in terminalreporter.getreports("passed") if asked else []:
        for name, row in report.user_properties:
            if name in asked and report.when == "call":
                terminalreporter.write_line(row)


@pytest.fixture(scope="session", autouse=True)
def _places_of_wider_fixtures(tmp_path_factory: pytest.TempPathFactory):
    """Keep fixtures of a module or session from what this machine has built."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("places")
        patch.setenv("FEDLIB_CACHE", str(folder / "cache"))
        patch.setenv("FEDLIB_FIGURES", str(folder / "figures"))
        patch.setenv("FEDLIB_RESULTS", str(folder / "results"))
        yield


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep every test's runs, decoded data and figures to itself."""
    monkeypatch.setenv("FEDLIB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDLIB_FIGURES", str(tmp_path / "figures"))
    monkeypatch.setenv("FEDLIB_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("FEDLIB_PROGRESS", "none")
    monkeypatch.setenv("FEDLIB_JOBS", "1")  # what tests replace, other processes lack
    return tmp_path / "cache"


def forget_sources() -> None:
    """Let modules be read again."""
    for module in (files, modules, definitions, walk):
        for each in vars(module).values():
            if hasattr(each, "cache_clear"):
                each.cache_clear()


@pytest.fixture
def edit() -> Iterator[Callable[[str, str, str], None]]:
    """Return a function that edits a module's code as if it had been imported so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walk, "refuse_changed", lambda files: None)

        def change(module: str, old: str, new: str) -> None:
            path = home(module)
            assert path is not None
            text = files.texts[path].decode()
            assert old in text, f"{module}: {old}"
            edited = text.replace(old, new, 1).encode()
            patch.setitem(files.texts, path, edited)
            forget_sources()

        yield change
    forget_sources()


def copied(folder: Path) -> Path:
    """Return a copy of the package in a folder, which is not compiled again."""
    half_written = shutil.ignore_patterns("*.pyc.*")  # by a process beside this one
    return shutil.copytree(ROOT / "fedlib", folder / "fedlib", ignore=half_written)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder that data are looked for in."""
    folder = tmp_path / "source"
    folder.mkdir()
    monkeypatch.setenv("FEDLIB_DATA", str(folder))
    return folder


def toy_shards(sizes: list[int], *, classes: int = 4, seed: int = 0) -> Shards:
    """Return separable 8 x 8 images: class c has a bright bar at row c."""
    draw = generator(seed, "toy")
    total = sum(sizes)
    y = torch.randint(classes, (total,), generator=draw)
    x = 0.3 * torch.randn(total, 1, 8, 8, generator=draw)
    x[torch.arange(total), 0, 2 * y] += 2.0
    starts = torch.tensor([0, *sizes]).cumsum(0)
    index = [torch.arange(a, b) for a, b in pairwise(starts.tolist())]
    return Shards(x, y, index, list(range(len(sizes))))


def toy_context(
    method: Method,
    clients: int,
    *,
    net: str = "digits_linear",
    classes: int = 4,
    chunk: int | None = None,
    training: Training | None = None,
    **hp,
) -> Context:
    """Return a context with a small net of the digits."""
    return Context(
        hp=method.hp(**hp),
        net=nets.build(net, (1, 8, 8), classes),
        training=training or Training(learning_rate=0.1),
        classes=classes,
        clients=clients,
        seed=7,
        chunk=chunk,
    )
