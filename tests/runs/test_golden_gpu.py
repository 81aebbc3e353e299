"""One run at a paper's full size on a GPU against numbers that the CPU measured.

The golden numbers are those of a published run, each with a tolerance: four
standard deviations of an accuracy p on n test samples, ``sqrt(p (1 - p) / n)``, rounded
up to a tenth of a point. Rounding parts two runs within some rounds; from then on they
differ as two draws do.
"""

import math
import os

import pandas as pd
import pytest
import torch

from fedlib.rebuild import artefacts
from fedlib.runs import address, published, runner
from fedlib.runs.spec import Spec
from fedlib.support.paths import ROOT

GOLDEN = pd.read_csv(ROOT / "tests" / "golden" / "gfpl_mnist.csv")
SAMPLES = 2840  # in the test shards of the 20 clients
CACHE = os.environ.get("FEDLIB_CACHE")  # before every test has a cache of its own
KEYS = ["run", "model", "rule", "data"]


def golden() -> Spec:
    """Return the run of the numbers: GFPL on MNIST at the paper's rounds, seed 1234."""
    specs = artefacts.prepare("gfpl/learning", "cpu", None).specs
    (spec,) = [spec for spec in specs if (spec.method, spec.seed) == ("gfpl", 1234)]
    return spec


def test_golden_numbers_are_those_of_a_published_run(monkeypatch):
    monkeypatch.setenv("FEDLIB_RESULTS", str(ROOT / "results"))
    spec = golden()
    assert spec.rounds == 80  # Table 1 of the paper
    result = published.find(spec, address.key(spec))
    assert result is not None
    both = GOLDEN.merge(result.summary(), on=KEYS[1:], suffixes=("", "_here"))
    assert len(both) == len(GOLDEN) > 0
    here = 100 * both["mean_last5_here"]
    assert here.tolist() == pytest.approx(both["mean_last5"].tolist(), abs=1e-6)


def test_tolerances_are_four_standard_deviations():
    for row in GOLDEN.itertuples():
        p = row.mean_last5 / 100
        sd = 100 * math.sqrt(p * (1 - p) / SAMPLES)
        assert row.tolerance == pytest.approx(math.ceil(40 * sd) / 10)


@pytest.mark.gpu
@pytest.mark.golden
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
@pytest.mark.filterwarnings("ignore:.*does not have a deterministic implementation")
def test_a_run_of_the_papers_size_gives_the_golden_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(address, "cache_dir", lambda: tmp_path)  # computed, not found
    if CACHE is None:
        monkeypatch.delenv("FEDLIB_CACHE")  # data sets are where they were
    else:
        monkeypatch.setenv("FEDLIB_CACHE", CACHE)
    monkeypatch.setenv("FEDLIB_DEVICE", "cuda")
    result = runner.run(golden())
    assert int(result.log.samples[0].sum()) == SAMPLES
    both = GOLDEN.merge(result.summary(), on=KEYS[1:], suffixes=("", "_here"))
    assert len(both) == len(GOLDEN)
    apart = (both["mean_last5"] - 100 * both["mean_last5_here"]).abs()
    far = both.assign(apart=apart)[apart > both["tolerance"]]
    assert far.empty, far.to_string()
