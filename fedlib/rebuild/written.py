"""The files of a figure or table: what was drawn, and where its numbers come from."""

import json
import platform
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from pydantic import BaseModel

import fedlib
from fedlib.draw import saving
from fedlib.draw.tables import Rendered, render
from fedlib.rebuild import captions
from fedlib.runs.notes import Note, record
from fedlib.runs.results import measured
from fedlib.runs.spec import SettingError
from fedlib.support import lock
from fedlib.support.files import write_text
from fedlib.support.paths import PRESETS, figures_dir, private_path

if TYPE_CHECKING:
    from fedlib.data import Dataset, Facts


class Written:
    """The files of one figure or table of a paper, under one preset."""

    def __init__(self, paper: str, name: str, preset: str, folder: str = ""):
        for argument, value in (("paper", paper), ("name", name)):
            if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", value):
                raise ValueError(
                    f"{argument}: got {value!r}, expected a-z, 0-9, _ and -"
                )
        if preset not in PRESETS:
            raise ValueError(f"preset: got {preset!r}, expected one of {PRESETS}")
        self.paper, self.name, self.preset = paper, name, preset
        self._folder = folder or preset  # below figures/
        self._kinds: dict[str, str] = {}
        self._drawn: list[tuple[Figure, pd.DataFrame, Path]] = []

    def _base(self, suffix: str, kind: str) -> Path:
        """Return the path without ending; a figure and a table cannot share it."""
        if not re.fullmatch(r"[a-z0-9_-]*", suffix):
            raise ValueError(f"suffix: got {suffix!r}, expected a-z, 0-9, _ and -")
        before = self._kinds.setdefault(suffix, kind)
        if before != kind:
            raise ValueError(
                f"suffix: got {suffix!r} for a {kind}, which a {before} has already; "
                "expected another one"
            )
        name = f"{self.name}_{suffix}" if suffix else self.name
        return self._home() / name

    def _home(self) -> Path:
        return figures_dir() / self._folder / self.paper

    def open(self) -> None:
        """See to it that the files can be written, before anything is computed.

        Raises
        ------
        SettingError
            The folder of figures cannot be made or written to.
        """
        folder = self._home()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise SettingError(f"figures: cannot write to {folder}: {error}") from error

    def figure(self, fig: Figure, df: pd.DataFrame, suffix: str = "") -> None:
        """Write a figure as PNG and PDF, and its numbers as CSV.

        ``provenance`` writes data, budget and seeds below it.
        """
        self._drawn.append((fig, df, self._base(suffix, "figure")))
        saving.save(*self._drawn[-1])

    def table(
        self, content: pd.DataFrame | Rendered, suffix: str = "", **options: Any
    ) -> Rendered:
        """Write a table as CSV, Markdown and LaTeX, and return it for display.

        Parameters
        ----------
        content : DataFrame or Rendered
            A DataFrame is rendered with ``options``; by default its numbers are the
            float columns.
        """
        if not isinstance(content, Rendered):
            floats = [c for c in content if pd.api.types.is_float_dtype(content[c])]
            content = render(content, options.pop("values", floats), **options)
        elif options:
            raise ValueError(f"options: got {list(options)} for a finished table")
        base = self._base(suffix, "table")
        for ending, text in (
            ("csv", content.csv),
            ("md", content.markdown),
            ("tex", content.latex),
        ):
            write_text(base.with_name(f"{base.name}.{ending}"), text)
        return content

    def provenance(
        self,
        results: Sequence["fedlib.Result"] = (),
        settings: BaseModel | dict[str, Any] | None = None,
        datasets: Sequence["Dataset | Facts"] = (),
        notes: Sequence[Note | str] = (),
        *,
        messages_only: bool = False,
    ) -> None:
        """Write where the numbers come from, as JSON without times or places.

        Parameters
        ----------
        results : list of Result
            The runs behind the artefact. Each is written with all its settings and its
            accuracy, so that it counts wherever a paper prints a number for them.
        settings : dict or model
            The notebook's parameters.
        datasets : list of Dataset or Facts
        notes : list of Note or str
            What a reader must know, such as ``Note("reduced", "20 of 500 rounds")``;
            plain text is a remark.
        messages_only : bool
            The runs are as short as it takes to count their messages: their accuracy
            is left out, and counts nowhere.
        """
        if isinstance(notes, str):
            raise TypeError(f"notes: got {notes!r}, expected a list of notes")
        runs = [
            {
                "key": r.key,
                "dataset": r.spec.dataset,
                "method": r.spec.method,
                "seed": r.spec.seed,
                "rounds": r.spec.rounds,
                "spec": r.spec.model_dump(mode="json"),
                "accuracy": None if messages_only else measured(r),
            }
            for r in results
        ]
        content = {
            "artefact": f"{self.paper}/{self.name}",
            "preset": self.preset,
            "settings": settings or {},
            "notes": [record(note) for note in notes],
            "seeds": sorted({r.spec.seed for r in results}),
            "runs": runs,
            "data": [
                {"name": d.name, "title": d.title, "fingerprint": d.fingerprint}
                for d in datasets
            ],
            "versions": {
                "python": platform.python_version(),
                "torch": str(torch.__version__),
                "numpy": np.__version__,
                "fedlib": fedlib.__version__,
                "lock": lock.installed(),
            },
        }
        text = json.dumps(
            content, indent=1, sort_keys=True, ensure_ascii=False, default=_plain
        )
        for part in _texts(json.loads(text)):
            if private := private_path(part):
                raise ValueError(f"settings, notes: got a path below {private}")
        base = self._home() / self.name
        write_text(base.with_name(f"{base.name}.json"), text + "\n")
        for fig, df, path in self._drawn:
            saving.footnote(fig, captions.budget(content, list(df)))
            saving.save(fig, df, path)
        self._drawn.clear()


def _plain(value: Any) -> Any:
    """Return what JSON can hold for settings, numbers and containers of them."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, np.generic | torch.Tensor | np.ndarray):
        return value.tolist()
    raise TypeError(f"settings: got {type(value).__name__}, expected plain data")


def _texts(content: Any) -> Iterator[str]:
    """Yield every text of a JSON document, names of fields included."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, dict | list):
        for part in content:
            yield from _texts(part)
        for part in content.values() if isinstance(content, dict) else ():
            yield from _texts(part)
