"""The papers' settings as data: what each artefact runs, and with what.

Each paper is a sub-package: its protocols (``protocols.py``), what its tables run every
method with (``presets.py``), which run a number of its tables is (``scoreboard.py``)
and, where there are any, runs that are not its grid (``special.py``).
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

# A paper joins with one line here, in the order in which tables have them. The import
# first binds the sub-package to its name, as imports of modules do, then the function
# of that name in its place: ``papers.fedmps(...)`` is a call.
# isort: off
from fedlib.papers.gfpl import gfpl as gfpl
from fedlib.papers.fedpa import fedpa as fedpa
from fedlib.papers.fedmps import fedmps as fedmps
from fedlib.papers.fedhpro import fedhpro as fedhpro
from fedlib.papers.fedpg import fedpg as fedpg

# isort: on
from fedlib.papers.budget import lengths, shorter
from fedlib.papers.protocol import Paper, Protocol, spec_of
from fedlib.runs.notes import Note
from fedlib.runs.spec import Spec

if TYPE_CHECKING:
    from fedlib.runs.results import Result

# name -> what returns a setting: the functions that stand in the package of their name
BUILDERS: dict[str, Callable[..., Spec]] = {
    name: found
    for name, found in list(globals().items())
    if getattr(found, "__module__", "").startswith(f"{__name__}.{name}.")
}
TABLES: dict[str, Paper] = {
    name: import_module(f"{__name__}.{name}").PAPER for name in BUILDERS
}
PAPERS: dict[str, Mapping[str, Protocol]] = {
    name: paper.protocols for name, paper in TABLES.items()
}
OURS = {"digits", "noise"}
_added: set[tuple[str, str]] = set()  # papers, and data sets that ``add`` gave them


def setting(paper: str, dataset: str, method: str, **changes: Any) -> Spec:
    """Return a paper's setting of a method on a data set.

    Parameters
    ----------
    paper : str
        A key of ``PAPERS``.
    dataset : str
        A data set of that paper, as in ``PAPERS[paper]``.
    method : str
        A registered method; its presets for that paper are applied, those of training
        too.
    **changes
        ``hp`` (on top of the presets), ``partition`` and ``training`` (on top of the
        paper's), or any other field of ``Spec``.

    Raises
    ------
    SettingError
        An unknown or illegal setting.
    ValueError
        Unknown paper, data set or method.
    """
    if paper not in PAPERS:
        raise ValueError(f"paper: got {paper!r}, expected one of {list(PAPERS)}")
    return spec_of(TABLES[paper], dataset, method, **changes)


def add(paper: str, dataset: str, like: str, **changes: Any) -> None:
    """Give a paper a setting of a data set of your own, like that of one of its own.

    Parameters
    ----------
    paper, like : str
        A key of ``PAPERS``, and a data set of that paper.
    dataset : str
        What was added by ``data.add_folder``.
    **changes
        Fields of ``Protocol`` in place of those of ``like``, such as ``net``.

    Raises
    ------
    ValueError
        Unknown paper, data set or field, or the paper has this data set itself.
    """
    if paper not in PAPERS:
        raise ValueError(f"paper: got {paper!r}, expected one of {list(PAPERS)}")
    protocols = cast("dict[str, Protocol]", PAPERS[paper])
    if like not in protocols:
        raise ValueError(f"like: got {like!r}, expected one of {list(protocols)}")
    if dataset in protocols and (paper, dataset) not in _added:
        raise ValueError(f"dataset: got {dataset!r}, which {paper} has itself")
    protocols[dataset] = protocols[like]._replace(**changes)
    _added.add((paper, dataset))
    OURS.add(dataset)


def special(artefact: str) -> Callable[[Mapping[str, Any]], list[Spec]] | None:
    """Return what makes an artefact's runs of its parameters; None for a grid.

    It stands in ``special.py`` of the paper, or of ``ours`` for what is no paper's.
    """
    paper = artefact.split("/")[0]
    module = f"{__name__}.{paper if paper in PAPERS else 'ours'}.special"
    # imported when asked for: these modules use ``study``, which imports this one
    return import_module(module).SPECIAL.get(artefact) if find_spec(module) else None


def _protocol(paper: str, spec: Spec) -> Protocol:
    """Return whose length a run is measured by: the paper's, or a released program's.

    It is a released program's where the clients train as that program's and not as the
    paper's, whatever else is varied.
    """
    own = PAPERS[paper][spec.dataset]
    length = {"local_epochs", "local_steps"}
    wanted = spec.training.model_dump(exclude=length)
    for protocol in (own, *TABLES[paper].configurations.values()):
        if protocol.training.model_dump(exclude=length) == wanted:
            return protocol
    return own


def notes(results: "Sequence[Result]", paper: str = "fedmps") -> list[Note]:
    """Return what a reader of these numbers of a paper must know, each once."""
    notes_there = []
    for spec in (r.spec for r in results):
        protocol = _protocol(paper, spec)
        training = protocol.training
        variant = {k: v for k, v in spec.hp.items() if k == "variant"}
        full = lengths(BUILDERS[paper](spec.dataset, spec.method, hp=variant))
        full |= {"rounds": protocol.rounds, "local epochs": training.local_epochs}
        if training.local_steps is not None:
            full["local steps"] = training.local_steps
        cuts = shorter(lengths(spec), full)
        if spec.net != protocol.net:
            cuts.append(f"net {spec.net} in place of {protocol.net}")
        head = f"reduced budget: {spec.dataset}"
        notes_there += [Note("reduced", f"{head}, {words}") for words in cuts]
        if spec.dataset in OURS:
            text = f"{spec.dataset} is not a data set of the paper"
            notes_there.append(Note("not_paper_data", text))
    return list(dict.fromkeys(notes_there))
