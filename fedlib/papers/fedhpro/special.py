"""The runs of FedHPro's artefacts that are not its grid."""

from collections.abc import Mapping
from typing import Any

from fedlib.papers import study
from fedlib.runs.spec import Spec


def _beside_pooled(p: Mapping[str, Any]) -> list[Spec]:
    return [*study.grid("fedhpro", p).specs, *study.pooled("fedhpro", p)]


SPECIAL = {"fedhpro/fig2": _beside_pooled, "fedhpro/fig3": _beside_pooled}
