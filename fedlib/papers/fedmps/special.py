"""The runs of FedMPS's artefacts that are not its grid."""

from collections.abc import Mapping
from typing import Any

from fedlib import papers
from fedlib.runs.spec import Spec, refuse_unknown


def _table5(p: Mapping[str, Any]) -> list[Spec]:
    refuse_unknown(p, ("preset", "dataset", "methods", "ways", "seed"))
    return [
        papers.fedmps(p["dataset"], m, seed=p["seed"], ways=p["ways"], rounds=2)
        for m in p["methods"]
    ]


SPECIAL = {"fedmps/table5": _table5}
