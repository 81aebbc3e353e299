"""The papers' numbers against sums of the printed tables, not taken from the files."""

from typing import NamedTuple

import pandas as pd
import pytest

from fedlib.partition import SCHEMES
from fedlib.registry import METHODS
from fedlib.reports import REFERENCE, reference

# Per file: rows, and the sum of each column of numbers; below it, for each setting, the
# sum of all these columns over the rows that have it.
SUMS = """
gfpl/table1 120 mean=9544.17 sd=457.73 rounds=15360 parameters_k=10130373
    dataset mnist=13338.47 femnist=255021.69 cifar10=4943835.22 cifar100=4943539.52
    ways 3=3385326.79 4=3385220.55 5=3385187.56
    method local=972.25 fesem=1462055.98 fedprox=1462359.56 fedper=1413435.11
    method fedavg=1462509.43 fedrep=1413250.85 fedproto=2589.28 fedfa=1461938.98
    method fedpa=1474325.78 gfpl=2297.68
gfpl/table2 24 mean=1753.68 sd=117.96
    dataset cifar10=547.03 femnist=780.97 cifar100=543.64
    shot_spread 1=936.49 20=935.15
    variant none=444.15 pseudo=469.43 dual_classifier=477.47
    variant dual_classifier+pseudo=480.59
gfpl/table3 28 value=822.04
    dataset mnist=158.01 femnist=228.01 cifar10=218.01 cifar100=218.01
    setting projection_size=338 shots=392 learning_rate=0.04 align_weight=8
    setting batch_size=72 channels=8 merge_threshold=4
gfpl/fig3 2 mean=192.96
    value 0=94.05 2=98.91
fedpa/table2 42 mean=3578.42 sd=24.84
    dataset mnist=1126.31 emnist=922.99 fashion=1031.88 celeba=522.08
    alpha 0.1=994.64 1=1575.35 0.3=511.19
    method fedavg=593.04 fedprox=591.21 fedensemble=597.33 fedgen=608.19 fedhkd=597.88
    method fedpa=615.61
fedpa/table3 12 mean=873.96
    participation 0.1=280.43 0.5=294.69 0.8=298.84
    method fedavg=207.39 fedgen=221.26 fedhkd=215.82 fedpa=229.49
fedpa/table4 6 mean=458.74
    variant none=70.94 prototype=75.21 generator=77.39 adversarial+generator=77.42
    variant generator+prototype=78.85 adversarial+generator+prototype=78.93
fedpa/table5 32 mean=875.177
    round 0=220.996 2=225.652 3=206.987 10=221.542
    alpha 0.1=219.665 0.4=218.514 0.7=221.313 1=215.685
    distance intra=213.411 inter=661.766
fedmps/table2 6 classes=101 block=385 shots=359 test_shots=66 spread=9
    dataset flowers=75 defungi=70 realwaste=33 cifar10=236 fashion=237 femnist=269
fedmps/table3 48 mean=3259.78 sd=92.04 star=38
    dataset flowers=487.13 defungi=558.06 realwaste=477.09 cifar10=530.03 fashion=720.18
    dataset femnist=617.33
    method fedavg=401.3 fedprox=405.16 moon=402.29 fedntd=404.21 fedgkd=414.89
    method fedproc=389.68 fedproto=479.22 fedmps=493.07
fedmps/table4 2 mean=197.44 sd=0.79
    method fedproto=99.14 fedmps=99.09
fedmps/table5 8 parameters=8725780
    method fedavg=1240120 fedprox=1240120 moon=1240120 fedntd=1240120 fedgkd=2480240
    method fedproc=1247200 fedproto=7080 fedmps=30780
fedmps/table6 144 mean=6535.97 sd=1286.23
    dataset flowers=1147.61 defungi=1332.43 realwaste=1137.2 cifar10=1231.66
    dataset fashion=1559.2 femnist=1414.1
    ways 3=3960.79 4=3861.41
    method fedavg=928.35 fedprox=951.51 moon=954.73 fedntd=952.21 fedgkd=969.43
    method fedproc=928.44 fedproto=1057.15 fedmps=1080.38
fedmps/table7 6 mean=465.58 sd=64.99
    variant none=86.99 low=89.21 high=87.78 soft=87.43 low+high=89.94
    variant low+high+soft=89.22
fedmps/fig10 12 best=33.5 sd=8.93
    dataset flowers=7.99 defungi=7.68 realwaste=7.5 cifar10=7.0 fashion=5.99
    dataset femnist=6.27
    setting contrast_temperature=8.47 soft_temperature=33.96
fedhpro/table1 108 mean=6513.82
    dataset cifar10=4105.41 ham10000=1273.64 tiny_imagenet=1134.77
    partition nid1=5090.22 nid2=1423.6
    alpha 0.2=1564.73 0.5=3525.49
    imbalance 1=4630.98 10=687.68 50=638.52 100=556.64
    method fedavg=702.95 fedprox=702.65 moon=717.18 fedproto=710.59 fedtgp=729.55
    method fedgmkd=729.1 fedrcl=731.99 fedsa=734.26 fedhpro=755.55
fedhpro/table2 90 mean=3050.16
    dataset digits_domains=2450.46 office_caltech=599.7
    domain mnist=585.91 usps=552.64 svhn=484.77 syn=337.07 average=610.01 caltech=125.32
    domain webcam=111.35 amazon=156.48 dslr=86.61
    method fedavg=671.23 fedproto=402.07 fedtgp=408.37 fedgmkd=409.19 fedsa=412.71
    method fedhpro=746.59
fedhpro/table3 20 mean=1651.98 gain=19.64
    domain mnist=391.57 usps=371.74 svhn=334.21 syn=239.75 average=334.35
    method fedproto=415.45 fedtgp=417.75 fedgmkd=418.63 fedsa=419.79
fedhpro/table5 40 mean=2866.77
    dataset digits_domains=1655.76 office_caltech=1211.01
    domain mnist=391.64 usps=367.23 svhn=329.27 syn=236.48 average=573.34 caltech=252.75
    domain webcam=223.8 amazon=315.23 dslr=177.03
    variant none=671.23 contrast=722.53 align=726.42 contrast+align=746.59
fedhpro/table6 12 mean=876.3 gain=-19.74
    dataset digits_domains=327.12 office_caltech=241.48 cifar10=287.96
    variant hyper=224.01 prototypes_in_contrast=216.17 prototypes_in_align=213.19
    variant prototypes_in_both=203.19
fedhpro/fig2 20 mean=1628.95 gain=10.5
    domain mnist=390.08 usps=367.69 svhn=321.42 syn=223.98 average=336.28
    method fedavg=394.13 fedproto=815.35 fedhpro=429.97
    variant hyper=411.69
fedhpro/log 100 mean=4335.24
fedpg/table1 48 mean=2499.98 never=3 ratio=47.7
    dataset femnist=688.41 cifar10=1589.12 cifar100=273.15
    partition writers=688.41 lda=1175.23 two_class=330.78 subset=356.26
    method fedavg=306.31 vhl=313.12 fedprox=315.41 fedntd=325.65 moon=318.92
    method fedgen=312.86 ccvr=318.64 fedpg=339.77
fedpg/table2 26 mean=1425.37
    virtual_per_class 0=51.07 64=272.28 128=278.25 256=275.84 512=275.39 1024=272.54
    variant without_anchor=275.25 without_proto=275.99 without_align=272.32
    variant without_tuning=270.13
fedpg/table3 8 mean=2742.38
    cost local_training=1004.79 round=45.76 generator_training=1691.83
    variant fc=1205.57 cnn=1265.07
"""
DATASETS = {
    *("mnist", "fashion", "emnist", "femnist", "cifar10", "cifar100", "celeba"),
    *("flowers", "defungi", "realwaste", "imagenet", "ham10000", "tiny_imagenet"),
    *("digits_domains", "office_caltech"),
}
DOMAINS = {
    "digits_domains": ["mnist", "usps", "svhn", "syn"],
    "office_caltech": ["caltech", "webcam", "amazon", "dslr"],
}
# Columns that hold what was measured or said of it; all others are settings. "value" is
# a setting of Fig. 3 and what Table 3 is about.
MEASURED = {
    *("mean", "sd", "star", "gain", "ratio", "never", "rounds", "parameters_k"),
    *("parameters", "best", "mark", "source", "unit"),
}
NOT_PERCENT = {"fedpa/table5", "fedpg/table3"}
FILES = sorted(
    path.relative_to(REFERENCE).with_suffix("").as_posix()
    for path in REFERENCE.glob("*/*.csv")
)


class Printed(NamedTuple):
    rows: int
    columns: dict[str, float]
    settings: dict[tuple[str, str], float]


def printed() -> dict[str, Printed]:
    """Return what ``SUMS`` holds per file."""
    found: dict[str, Printed] = {}
    for line in SUMS.strip().splitlines():
        first, *words = line.split()
        pairs = [word.rpartition("=") for word in words if "=" in word]
        sums = {name: float(value) for name, _, value in pairs}
        if line.startswith(" "):
            last = found[next(reversed(found))]
            last.settings.update({(first, name): value for name, value in sums.items()})
        else:
            found[first] = Printed(int(words[0]), sums, {})
    return found


PRINTED = printed()


def table(name: str) -> pd.DataFrame:
    return reference(*name.split("/"))


def settings(frame: pd.DataFrame) -> list[str]:
    return [column for column in frame if column not in MEASURED]


def key(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def test_sums_know_every_file():
    assert sorted(PRINTED) == FILES
    readme = (REFERENCE / "README.md").read_text()
    assert all(f"`{name}.csv`" in readme for name in FILES)


@pytest.mark.parametrize("name", FILES)
def test_rows_and_sums_are_the_papers(name):
    frame, (rows, columns, _) = table(name), PRINTED[name]
    assert len(frame) == rows
    found = {column: frame[column].sum() for column in columns}
    assert found == pytest.approx(columns, abs=1e-6)
    told = MEASURED - {"mark", "source", "unit"}
    assert set(columns) == ({*frame} & told or {"value"}) or name == "fedmps/table2"


@pytest.mark.parametrize("name", FILES)
def test_every_setting_sums_to_what_the_paper_prints(name):
    frame, (_, columns, groups) = table(name), PRINTED[name]
    frame = frame.assign(total=frame[list(columns)].sum(axis=1))
    if "mark" in frame:
        frame = frame[frame["mark"] != "unavailable"]
    for setting in {setting for setting, _ in groups}:
        found = frame.groupby(setting)["total"].sum()
        expected = {k: v for (s, k), v in groups.items() if s == setting}
        assert {key(k): v for k, v in found.items()} == pytest.approx(
            expected, abs=1e-6
        )


@pytest.mark.parametrize("name", FILES)
def test_names_are_ours(name):
    frame = table(name)
    for column, known in {
        "method": set(METHODS),
        "dataset": DATASETS,
        "partition": {*SCHEMES, "iid", "writers"},
        "mark": {"unavailable", "uncertain", "inferred"},
        "source": {"fig2", "table3", "table5"},
    }.items():
        assert set(frame.get(column, pd.Series()).dropna()) <= known
    if "domain" in frame:
        for dataset, part in frame.dropna(subset="domain").groupby("dataset"):
            assert set(part["domain"]) <= {*DOMAINS[dataset], "average"}


@pytest.mark.parametrize("name", FILES)
def test_values_are_possible_and_keys_unique(name):
    frame = table(name)
    assert not frame.duplicated(settings(frame)).any()
    if "mean" in frame:
        missing = frame["mark"] == "unavailable" if "mark" in frame else False
        assert (frame["mean"].isna() == missing).all()
        known = frame["mean"].dropna()
        assert (known > 0).all()
        assert (known < 100).all() or name in NOT_PERCENT
        if "sd" in frame:
            assert (frame["sd"].isna() == missing).all()
    for column in {"sd", "ratio", "rounds", "parameters", "parameters_k"} & {*frame}:
        assert (frame[column].dropna() >= 0).all()
    for column in {"star", "never"} & {*frame}:
        assert frame[column].dtype == bool


def test_marks_stand_where_the_paper_is_silent_or_doubtful():
    marks = {name: table(name) for name in FILES if "mark" in table(name)}
    found = {name: frame["mark"].value_counts() for name, frame in marks.items()}
    assert {name: dict(count) for name, count in found.items()} == {
        "gfpl/table3": {"uncertain": 3},
        "fedmps/table6": {"uncertain": 48, "unavailable": 48},
        "fedhpro/table2": {"inferred": 40, "unavailable": 50},
        "fedpg/table3": {"uncertain": 5},
    }
    ways = table("fedmps/table6").fillna({"mark": ""}).groupby("ways")["mark"].unique()
    assert [list(of) for of in ways] == [[""], ["uncertain"], ["unavailable"]]
