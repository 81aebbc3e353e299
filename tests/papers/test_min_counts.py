"""What keeping small classes back costs: the grid of runs, and its table."""

import pandas as pd
import pytest

import fedlib
from fedlib.papers.ours import min_counts
from fedlib.runs.federation import federation
from fedlib.runs.spec import SettingError

P = {
    "dataset": "digits",
    "methods": ["fedproto"],
    "partitions": ["nid1"],
    "sampling": {},
    "min_counts": [1, 5],
    "clients": 10,
    "rounds": 1,
    "server_steps": 1,
    "seeds": [0, 1],
}


def test_the_grid():
    specs = min_counts.specs(P | {"sampling": {"alpha": 0.7, "ratio": 0.5}})
    assert [(s.seed, s.min_count) for s in specs] == [(0, 1), (0, 5), (1, 1), (1, 5)]
    assert {s.partition.model_dump()["alpha"] for s in specs} == {0.7}
    with pytest.raises(SettingError, match="min_count: got 5 for fedavg"):
        min_counts.specs(P | {"methods": ["fedavg"]})


def test_the_table_by_counting():
    """Cells kept back and bytes by loops over the partition; changes by seed."""
    specs = min_counts.specs(P)
    results = fedlib.run_many(specs)
    table = min_counts.table(results)
    assert list(table.min_count) == [1, 5]
    assert list(table.seeds) == [2, 2]
    share, size, sent = [], [], 0
    for spec in specs[1::2]:
        fed = federation(spec)
        size.append(fed.ctx.net.embedding_sizes()[1])
        labels = [fed.dataset.train_y[i].tolist() for i in fed.partition.train]
        cells = [each.count(c) for each in labels for c in set(each)]
        share.append(sum(n < 5 for n in cells) / len(cells))
        sent += sum(n >= 5 for n in cells) * (4 * size[-1] + 8) / 10 / 1e3
    assert table.withheld[0] == 0
    assert table.withheld[1] == pytest.approx(sum(share) / 2)
    assert table.kilobytes[1] == pytest.approx(sent / 2)
    means = [float(r.accuracy(*r.paper_rule)[-1].nanmean()) for r in results]
    changes = pd.Series([means[1] - means[0], means[3] - means[2]])
    assert table.change[0] == 0
    assert table.change[1] == pytest.approx(changes.mean())
    assert table.change_sd[1] == pytest.approx(changes.std())
