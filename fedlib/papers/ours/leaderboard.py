"""All methods beside each other under the partitions of the five papers; ours.

No paper has this comparison. All methods train the same net with the same optimiser on
the same clients for the same number of rounds, each at the library's defaults: what its
paper prints, or its program has where that is silent (FedTGP's pull, FedSA's weights
and FedHPro's unit vectors are ours, see their Readings). Nothing is tuned for anybody,
so that a weight that was chosen under SGD meets Adam here. Where a paper of the five
has released code there is a row for each, since a place must not hang on a reading.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from fedlib import registry
from fedlib.core.training import Training
from fedlib.partitions import LDA, NID1, CappedDirichlet, NwayKshot, Scheme, TwoClass
from fedlib.runs.results import Result, sent_bytes
from fedlib.runs.spec import Spec, refuse_unknown

# scheme -> its name in tables and figures, and who uses it
PARTITIONS = {
    "nway_kshot": "n-way k-shot (GFPL, FedMPS)",
    "capped_dirichlet": "capped Dirichlet (FedPA)",
    "nid1": "equal chunks (FedHPro)",
    "lda": "plain Dirichlet (FedPG)",
    "two_class": "two classes",
}


class Setting(NamedTuple):
    """What all methods share on a data set."""

    net: str
    training: Training
    partitions: Mapping[str, Scheme]


_ADAM = Training(optimiser="adam", learning_rate=0.003, batch_size=16, drop_last=False)
SETTINGS = {
    "digits": Setting(
        "digits_bn",
        _ADAM,
        {
            "nway_kshot": NwayKshot(shots=13, test_shots=4, block=14),
            "capped_dirichlet": CappedDirichlet(alpha=0.1, ratio=1.0, min_size=10),
            "nid1": NID1(alpha=0.2),
            "lda": LDA(alpha=0.1, min_size=10),
            "two_class": TwoClass(),
        },
    ),
    "fashion": Setting(
        "fedpa_cnn",
        _ADAM.model_copy(
            update={"learning_rate": 0.001, "batch_size": 32, "local_steps": 10}
        ),
        {
            "nway_kshot": NwayKshot(shots=100, test_shots=100, block=110),
            "capped_dirichlet": CappedDirichlet(alpha=0.1, ratio=1.0, min_size=100),
            "nid1": NID1(alpha=0.2),
            "lda": LDA(alpha=0.1, min_size=100),
            "two_class": TwoClass(),
        },
    ),
}

# FedMPS is made for unit embeddings and diverges without them.
EMBEDDINGS = {"fedmps": "unit"}
# The settings that a budget cuts: of generators (FedGen, FedPA, FedPG) and of FedHPro's
# hyper-prototypes. What else a server does, as FedTGP's and FedMPS's ``server_epochs``,
# stays at its default.
SERVER_STEPS = ("generator_steps", "hyper_steps")
# What all methods are asked by: their rules are not one exam, since FedMPS and FedProto
# choose among a client's own classes and the others among all.
READOUT = "head_own"
# What its runs are told.
PARAMETERS = {
    "preset",
    "dataset",
    "methods",
    "partitions",
    "clients",
    "rounds",
    "server_steps",
    "seeds",
}


def entries() -> list[str]:
    """Return what ``methods`` may name: all methods, and released variants behind."""
    names = []
    for name in registry.METHODS:
        both = "variant" in registry.method(name).hp.model_fields
        names += [name, f"{name}:reference"] if both else [name]
    return names


def label(spec: Spec) -> str:
    """Return a run's name in the table: its method, or as in ``FedPA (reference)``."""
    if spec.hp.get("variant") != "reference":
        return spec.method
    return f"{registry.title(spec.method)} (reference)"


def method_of(name: str) -> str:
    """Return the method of a row's label."""
    titles = {f"{registry.title(m)} (reference)": m for m in registry.METHODS}
    return titles.get(name, name)


def budget(p: Mapping[str, Any]) -> str:
    """Return in words what ``specs`` cuts: the rounds, and ``SERVER_STEPS``."""
    cut = " and ".join(SERVER_STEPS)
    return f"{p['rounds']} rounds, {cut} at most {p['server_steps']} per round"


def _hp(method: str, variant: str, p: Mapping[str, Any]) -> dict[str, Any]:
    """Return a method's defaults, ``SERVER_STEPS`` cut to the budget."""
    fields = registry.method(method).hp.model_fields
    hp: dict[str, Any] = {"variant": variant} if variant else {}
    full = registry.method(method).hp(**hp)
    hp |= {
        name: min(getattr(full, name), p["server_steps"])
        for name in SERVER_STEPS
        if name in fields
    }
    if "first_exchange" in fields:  # GFPL: five exchanges, however short the run
        every = max(1, p["rounds"] // 5)
        hp |= {"first_exchange": every, "exchange_every": every}
    return hp


def specs(p: Mapping[str, Any]) -> list[Spec]:
    """Return the runs of a leaderboard: partitions x methods x seeds.

    Parameters
    ----------
    p : mapping
        ``dataset``, ``methods`` (some of ``entries()``; empty: all), ``partitions``
        (keys of ``PARTITIONS``), ``clients``, ``rounds``, ``server_steps`` (upper limit
        of ``SERVER_STEPS``) and ``seeds``.

    Raises
    ------
    ValueError
        Unknown data set, partition or method; ``SettingError`` for an unknown name in
        ``p``.
    """
    refuse_unknown(p, PARAMETERS)
    if p["dataset"] not in SETTINGS:
        raise ValueError(
            f"dataset: got {p['dataset']!r}, expected one of {list(SETTINGS)}"
        )
    setting = SETTINGS[p["dataset"]]
    unknown = [name for name in p["partitions"] if name not in setting.partitions]
    if unknown:
        raise ValueError(
            f"partitions: got {unknown}, expected some of {list(setting.partitions)}"
        )
    return [
        Spec.of(
            dataset=p["dataset"],
            net=setting.net,
            method=method,
            hp=_hp(method, variant, p),
            embedding=EMBEDDINGS.get(method),
            partition=setting.partitions[partition].model_dump(),
            clients=p["clients"],
            rounds=p["rounds"],
            training=setting.training.model_dump(),
            seed=seed,
            eval_every=p["rounds"],
            test="full",
        )
        for partition in p["partitions"]
        for method, _, variant in (t.partition(":") for t in p["methods"] or entries())
        for seed in p["seeds"]
    ]


def megabytes(result: Result) -> float:
    """Return what one client sends and receives in a whole run, in MB (10^6 bytes).

    Floats count four bytes, integers eight.
    """
    floats, ints = result.payload()[["floats", "ints"]].sum().tolist()
    total = sent_bytes(floats, ints)
    return total / result.spec.clients / 1e6


def table(results: Sequence[Result]) -> pd.DataFrame:
    """Return one row per partition and method, averaged over seeds.

    All accuracies of a row are of one model, which the method's own rule names, in the
    last round, as fractions.

    Returns
    -------
    DataFrame
        partition (as printed), method (``label``), own (on the clients' own test
        shards by ``READOUT``, mean over clients), whole (on the whole test set, head
        over all classes; of FedEnsemble it is a vote of several models), megabytes
        (per client, both directions), rule (the method's own, model/rule), by_rule (as
        own, by that rule: no comparison of methods). whole is NaN where each client
        has a model of its own, ``received`` too: the server's weights without what
        stays with clients, such as BatchNorm statistics, are a model that nobody runs.
    """
    rows = []
    for result in results:
        model, rule = result.paper_rule
        full_test = float("nan")
        if f"{model}/head_all" in result.log.full:
            full_test = float(result.accuracy(model, "head_all", "full")[-1, 0])
        rows.append(
            {
                "partition": PARTITIONS[result.spec.partition.scheme],
                "method": label(result.spec),
                "own": float(result.accuracy(model, READOUT)[-1].nanmean()),
                "whole": full_test,
                "megabytes": megabytes(result),
                "rule": f"{model}/{rule}",
                "by_rule": float(result.accuracy(model, rule)[-1].nanmean()),
            }
        )
    frame = pd.DataFrame(rows)
    keys = ["partition", "method", "rule"]
    return frame.groupby(keys, sort=False, as_index=False).agg("mean")[[*frame]]


def overall(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per method: means over partitions, and the mean rank by ``own``.

    Rank 1 is the best of a partition; equal accuracies share their mean rank.
    """
    ranked = frame.assign(rank=frame.groupby("partition")["own"].rank(ascending=False))
    columns = ["method", "own", "rank", "whole", "megabytes", "rule", "by_rule"]
    grouped = ranked[columns].groupby(["method", "rule"], sort=False, as_index=False)
    return grouped.agg("mean")[columns].sort_values("rank", ignore_index=True)


def spread(results: Sequence[Result]) -> pd.DataFrame:
    """Return one row per method: how the means over partitions differ between seeds.

    Returns
    -------
    DataFrame
        method; own_sd, whole_sd and by_rule_sd (ddof 1); over_local and
        by_rule_over_local, by how much ``own`` and ``by_rule`` are above Local's, and
        over_fedavg, by how much ``whole`` is above FedAvg's, each the mean over seeds
        of the difference within a seed, with its sd. NaN where Local or FedAvg is none
        of the runs, and every sd of one seed.
    """
    by_seed: dict[int, list[Result]] = {}
    for result in results:
        by_seed.setdefault(result.spec.seed, []).append(result)
    boards = {
        seed: overall(table(part)).set_index("method") for seed, part in by_seed.items()
    }
    columns = {}
    for number, lead, other in (
        ("own", "over_local", "local"),
        ("whole", "over_fedavg", "fedavg"),
        ("by_rule", "by_rule_over_local", "local"),
    ):
        values = pd.DataFrame({seed: board[number] for seed, board in boards.items()})
        columns[f"{number}_sd"] = values.std(axis=1)
        base = values.loc[other] if other in values.index else float("nan")
        columns[lead] = (values - base).mean(axis=1)
        columns[f"{lead}_sd"] = (values - base).std(axis=1)
    return pd.DataFrame(columns).rename_axis("method").reset_index()
