"""Each paper's settings of every data set: legal, as printed or released, runnable."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from fedlib import data, papers, registry
from fedlib.core import nets
from fedlib.core.local import Losses
from fedlib.core.losses import cross_entropy
from fedlib.core.shards import Shards
from fedlib.core.tree import take
from fedlib.data import Transform
from fedlib.partitions import LDA, NID1, CappedDirichlet, DomainSkew, NwayKshot, Users
from fedlib.runs import runner
from fedlib.runs.beside import REFERENCE
from fedlib.runs.federation import federation
from fedlib.runs.spec import SettingError, Spec
from tests.conftest import TOY, copied, toy_context
from tests.data.test_leaf import users, write, write_faces

ALL = [(paper, name) for paper, sets in papers.PAPERS.items() for name in sets]


def here(paper: str, dataset: str, method: str = "fedavg", **changes):
    if dataset not in data.DATASETS:
        pytest.skip(f"{dataset} is not among the data sets")
    return papers.setting(paper, dataset, method, **changes)


@pytest.mark.parametrize(("paper", "dataset"), ALL)
def test_every_protocol_is_legal_and_its_net_takes_the_images(paper, dataset):
    for method in ("fedavg", paper):
        spec = here(paper, dataset, method)
        assert spec.dataset == dataset
        assert spec.clients * spec.participation >= 1
    entry = data.DATASETS[dataset]
    channels, *size = entry.shape
    side = spec.transform.side if spec.transform else None
    height, width = (side, side) if side else size
    classes = entry.classes or 10
    with torch.device("meta"):
        net = nets.build(spec.net, (channels, height, width), classes)
        out = net.module.eval()(torch.zeros(2, *net.shape))
    assert out.logits.shape == (2, classes)


# net, rounds, clients, clients per round, batch, epochs, learning rate, test
SETTINGS = {
    ("fedmps", "flowers"): ("lenet", 400, 20, 20, 8, 1, 0.01, "clients"),
    ("fedmps", "defungi"): ("lenet", 800, 20, 20, 8, 1, 0.01, "clients"),
    ("fedmps", "realwaste"): ("lenet", 6000, 20, 20, 8, 1, 0.01, "clients"),
    ("fedmps", "femnist"): ("femnist_cnn", 1000, 20, 20, 8, 1, 0.01, "clients"),
    ("gfpl", "femnist"): ("femnist_cnn", 110, 20, 20, 4, 1, 0.01, "clients"),
    ("gfpl", "cifar100"): ("resnet18", 80, 20, 20, 32, 1, 0.01, "clients"),
    ("fedpa", "emnist"): ("fedpa_cnn", 200, 20, 10, 32, 20, 1e-4, "pooled"),
    ("fedpa", "celeba"): ("fedpa_cnn_celeba", 200, 20, 10, 32, 20, 3e-4, "pooled"),
    ("fedhpro", "cifar100"): ("resnet10", 100, 10, 10, 64, 10, 0.1, "full"),
    ("fedhpro", "tiny_imagenet"): ("resnet10", 100, 10, 10, 64, 10, 0.1, "full"),
    ("fedhpro", "ham10000"): ("resnet10", 100, 10, 10, 64, 10, 0.1, "full"),
    ("fedhpro", "digits_domains"): ("resnet10", 100, 20, 20, 64, 10, 0.01, "groups"),
    ("fedhpro", "office_caltech"): ("resnet10", 100, 10, 10, 64, 10, 0.01, "groups"),
    ("fedpg", "cifar100"): ("resnet50", 200, 100, 10, 64, 3, 0.1, "full"),
    ("fedpg", "femnist_writers"): ("convnet5", 400, 200, 10, 64, 1, 0.1, "pooled"),
}


@pytest.mark.parametrize(("paper", "dataset"), SETTINGS)
def test_settings_are_those_of_the_paper_or_its_program(paper, dataset):
    spec = here(paper, dataset)
    training = spec.training
    assert (
        spec.net,
        spec.rounds,
        spec.clients,
        round(spec.clients * spec.participation),
        training.batch_size,
        training.local_epochs,
        training.learning_rate,
        spec.test,
    ) == SETTINGS[paper, dataset]


@pytest.mark.parametrize(
    ("training", "told"),
    [
        ({"optimiser": "adam", "momentum": 0.9}, r"momentum: got 0.9 beside optimiser"),
        ({"local_steps": 3, "local_epochs": 2}, r"local_epochs: got 2 beside local_st"),
    ],
)
def test_a_setting_that_nothing_reads_is_refused(training, told):
    """C13: it would change the key and no number."""
    with pytest.raises(SettingError, match=rf"^training\.{told}.* leave it out$"):
        here("fedmps", "digits", training=training)
    for name, value in training.items():  # each alone is read
        assert getattr(here("fedmps", "digits", training={name: value}).training, name)
    idle = [*training][1]
    with pytest.raises(SettingError, match=idle):  # FedPA's protocol has the other one
        here("fedpa", "digits", training={idle: training[idle]})
    whole = here("fedpa", "digits")  # what a record says of it changes nothing
    told = whole.training.model_dump()
    assert here("fedpa", "digits", training=told) == whole


def test_gradients_are_clipped_in_fedpgs_settings_alone():
    """The norm stands beside the learning rate in the notebook that both come from."""
    found = {p.training.clip for p in papers.PAPERS["fedpg"].values()}
    others = {
        protocol.training.clip
        for paper, protocols in papers.PAPERS.items()
        for protocol in protocols.values()
        if paper != "fedpg"
    }
    assert (found, others) == ({5.0}, {None})


# Training samples of the ten clients in FedPG's released log: ``train_total`` over its
# five local epochs.
LOGGED = (10_082, 5_536, 9_424, 346, 963, 5_676, 6_702, 3_667, 5_387, 3_217)


def test_fedpgs_clients_keep_their_last_batch():
    """The log's counts are whole shards; batches are dropped in no setting."""
    for protocol in papers.PAPERS["fedpg"].values():
        training = protocol.training
        assert (training.drop_last, training.drop_single) == (False, True)
        assert all(count % training.batch_size for count in LOGGED[4:])
    fed = federation(papers.fedpg("digits", "fedavg"))
    ctx = replace(fed.ctx, round=1)

    def loss(state, batch):
        out = ctx.net(state, batch.x, train=True)
        return Losses(cross_entropy(out.logits, batch.y), {}, {"high": out.high})

    trained = ctx.train(ctx.init_clients(common=True), fed.train, loss)
    sizes = fed.train.sizes()
    single = (sizes % 16 == 1) & (sizes > 16)
    assert (sizes % 16 > 1).any()
    seen = trained.protos["high"].count.sum(1)
    assert seen.tolist() == (sizes - single.long()).tolist()


def test_fedpgs_pooled_images_are_what_the_log_counts():
    """51,000 for ten clients, 6,000 to test; every setting is that of CIFAR-10."""
    assert data.DATASETS["cifar10_fs"].per_split == (sum(LOGGED), 6_000)
    for method in registry.METHODS:
        pooled = papers.fedpg("cifar10_fs", method)
        assert pooled.model_copy(update={"dataset": "cifar10"}) == papers.fedpg(
            "cifar10", method
        )
    for name in ("notebook", "script"):
        found, other = (
            papers.fedpg(dataset, "fedpg", configuration=name)
            for dataset in ("cifar10_fs", "cifar10")
        )
        assert found.model_copy(update={"dataset": "cifar10"}) == other


def test_fedpgs_released_configurations():
    """run_fedpg.ipynb and run_fedpg.py at commit 73ce01e."""
    wanted = {
        "notebook": (0.1, 64, 5, 100, 10, 5, 0.1, 256, 20.0),
        "script": (0.05, 128, 1, 200, 10, 1, 0.01, 50, 0.1),
    }
    for name, values in wanted.items():
        spec = papers.fedpg("cifar10", "fedpg", configuration=name)
        training = spec.training
        assert isinstance(spec.partition, LDA)
        assert (
            *(spec.partition.alpha, training.batch_size, training.local_epochs),
            *(spec.rounds, spec.clients, round(spec.clients * spec.participation)),
            training.learning_rate,
            *(spec.hp["virtual_per_class"], spec.hp["align_weight"]),
        ) == values
        assert (training.clip, training.momentum, training.weight_decay) == (5, 0, 0)
        assert (spec.hp["variant"], spec.net) == (name, "resnet18")
        plain = papers.fedpg("cifar10", "fedavg", configuration=name)
        assert plain.training == training
    given = {"partition": {"alpha": 1.0}, "hp": {"variant": "paper"}}
    changed = papers.fedpg("cifar10", "fedpg", configuration="script", **given)
    assert changed.partition == LDA(alpha=1.0)
    assert (changed.hp["variant"], changed.rounds) == ("paper", 200)
    with pytest.raises(ValueError, match="configuration: got 'log', expected one of"):
        papers.fedpg("cifar10", "fedpg", configuration="log")
    with pytest.raises(ValueError, match="dataset: got 'digits', expected one of"):
        papers.fedpg("digits", "fedpg", configuration="notebook")


def test_a_last_batch_of_one_image_does_not_stop_a_resnet():
    """BatchNorm refuses it on maps of one pixel: 17 images in batches of 16."""
    training = papers.PAPERS["fedpg"]["cifar10"].training
    training = training.model_copy(update={"batch_size": 16, "local_epochs": 1})
    ctx = toy_context(registry.method("fedavg"), 1)
    net = nets.build("resnet18", (3, 32, 32), 4)
    ctx = replace(ctx, round=1, net=net, training=training)
    images = torch.zeros(17, 3, 32, 32)
    shards = Shards(images, torch.arange(17) % 4, [torch.arange(17)], [0])

    def loss(state, batch):
        logits = net(state, batch.x, train=True).logits
        return Losses(cross_entropy(logits, batch.y), {}, {})

    ctx.train(ctx.init_clients(common=True), shards, loss)
    kept = replace(ctx, training=training.model_copy(update={"drop_single": False}))
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        kept.train(kept.init_clients(common=True), shards, loss)


def test_partitions_are_those_of_the_paper_or_its_program():
    found = {pair: papers.PAPERS[pair[0]][pair[1]].partition for pair in SETTINGS}
    digits = DomainSkew(per_domain=(3, 6, 6, 5), share=0.01, every_class=False)
    wanted = {
        ("gfpl", "femnist"): NwayKshot(shots=92, test_shots=15, spread=1, block=93),
        ("gfpl", "cifar100"): NwayKshot(test_shots=5, spread=2, overlap="wrap"),
        ("fedpa", "emnist"): CappedDirichlet(alpha=0.1, ratio=0.1, min_size=260),
        ("fedpa", "celeba"): Users(users_per_client=10),
        ("fedhpro", "cifar100"): NID1(alpha=0.5),
        # MNIST, USPS, SVHN, SYN
        ("fedhpro", "digits_domains"): digits,
        # Caltech, Amazon, Webcam, DSLR
        ("fedhpro", "office_caltech"): DomainSkew(per_domain=(3, 2, 2, 3), share=0.2),
        ("fedpg", "cifar100"): LDA(alpha=0.1),
        ("fedpg", "femnist_writers"): Users(users_per_client=1),
    }
    assert {pair: found[pair] for pair in wanted} == wanted
    tail = here("fedhpro", "cifar10", imbalance=50)  # CIFAR10-LT
    assert (tail.imbalance, tail.partition) == (50, NID1(alpha=0.5))


def test_transforms_of_papers():
    hpro = Transform(
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
        padding=4,
        flip=True,
    )
    pg = Transform(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))
    found = {
        (paper, name): here(paper, name).transform
        for paper, name in ALL
        if name in ("cifar10", "cifar100", "fashion", "emnist", "celeba", "digits")
        or name in ("cifar10_fs", "femnist_writers")
    }
    assert found == {
        ("gfpl", "cifar10"): None,
        ("gfpl", "cifar100"): None,
        ("gfpl", "digits"): None,
        ("fedpa", "fashion"): Transform(mean=(0.5,), std=(0.5,)),
        ("fedpa", "emnist"): Transform(mean=(0.5,), std=(0.5,)),
        ("fedpa", "celeba"): Transform(mean=(0.0,) * 3, std=(1 / 255,) * 3),
        ("fedpa", "digits"): None,
        ("fedmps", "cifar10"): None,
        ("fedmps", "fashion"): None,
        ("fedmps", "digits"): None,
        ("fedhpro", "cifar10"): hpro,
        ("fedhpro", "cifar100"): hpro,
        ("fedhpro", "digits"): None,
        ("fedpg", "cifar10"): pg,
        ("fedpg", "cifar10_fs"): pg,
        ("fedpg", "cifar100"): pg,
        ("fedpg", "femnist_writers"): Transform(mean=(0.1307,), std=(0.3081,), side=64),
        ("fedpg", "digits"): None,
    }
    own = papers.fedpg("femnist_writers", "fedavg", transform={"side": 32})
    assert own.transform == Transform(side=32)


def passes(spec: Spec) -> list[int]:
    """Batches of each client in a round, by a loop over its samples."""
    fed = federation(spec)
    seen = []

    def loss(state, batch):
        seen[-1] += 1
        zero = sum(v.sum() for v in state.values() if v.is_floating_point()) * 0
        return Losses(zero, {}, {})

    for k in range(spec.clients):
        seen.append(0)
        one = take(fed.method.init(fed.ctx)[1].state, torch.tensor([k]))
        fed.ctx.train(one, fed.train.cohort([k]), loss)
    return seen


def test_fedpas_twenty_are_batches_or_passes_over_the_data():
    """Algorithm 1: 20 steps. Section V-A3: 20 times the whole batches of 16."""
    few = {"scheme": "nway_kshot", "ways": 5, "shots": 13, "test_shots": 4}
    of = {"clients": 3, "partition": few}
    sizes = federation(papers.fedpa("digits", "fedavg", **of)).train.sizes().tolist()
    assert min(sizes) >= 32
    for method in ("fedavg", "fedpa"):
        steps = papers.fedpa("digits", method, **of)
        assert passes(steps) == [20, 20, 20]
        epochs = papers.fedpa("digits", method, local_unit="epochs", **of)
        assert passes(epochs) == [20 * (n // 16) for n in sizes]
        cut = papers.fedpa(
            "digits", method, local_unit="epochs", training={"local_epochs": 3}, **of
        )
        assert passes(cut) == [3 * (n // 16) for n in sizes]
    with pytest.raises(ValueError, match="local_unit: got 'epoch', expected 'steps'"):
        papers.fedpa("digits", "fedpa", local_unit="epoch")


def test_a_cut_of_fedpas_twenty_is_told():
    def told(**changes) -> list[str]:
        spec = papers.fedpa("fashion", "fedpa", **changes)
        return [
            note.text for note in papers.notes([SimpleNamespace(spec=spec)], "fedpa")
        ]

    assert told() == told(local_unit="epochs") == []
    cut = told(local_unit="epochs", training={"local_epochs": 5})
    assert cut == ["reduced budget: fashion, 5 of 20 local epochs"]
    cut = told(training={"local_steps": 4})
    assert cut == ["reduced budget: fashion, 4 of 20 local steps"]


def test_fedmps_draws_clients_as_its_table_2_prints():
    printed = pd.read_csv(REFERENCE / "fedmps" / "table2.csv")
    assert len(printed) == 6
    for row in printed.to_dict("records"):
        dataset = row.pop("dataset")
        drawn = papers.fedmps(dataset, "fedmps").partition.model_dump()
        ours = {name: drawn[name] for name in row if name != "classes"}
        assert ours | {"classes": data.DATASETS[dataset].classes} == row


def test_fedpa_on_faces(source):
    write_faces(source)
    scheme = {"users_per_client": 1}
    changes = {"rounds": 1, "clients": 2, "participation": 1.0, "partition": scheme}
    spec = papers.fedpa("celeba", "fedpa", hp=TOY["fedpa"], **changes)
    fed = federation(spec)
    assert float(fed.train.x.max()) > 200  # pixels as they are
    result = runner.run(spec)
    assert result.accuracy("global", "head_all", "pooled").shape == (1, 1)


def test_fedpg_on_writers(source):
    both = {"a.json": users({f"f{n}": 6 for n in range(5)})}
    for split in ("train", "test"):
        write(source / "femnist_writers" / split, both)
    changes = {"rounds": 1, "clients": 3, "participation": 1.0}
    spec = papers.fedpg("femnist_writers", "fedpg", hp=TOY["fedpg"], **changes)
    fed = federation(spec)
    assert fed.train.x.shape == (18, 1, 64, 64)
    assert fed.ctx.net.embedding_sizes()[1] == 512
    result = runner.run(spec)
    assert float(result.log.samples.sum()) == 18


@pytest.mark.parametrize("name", papers.PAPERS)
def test_builders_take_the_place_of_the_packages_of_their_name(name):
    """The package stays importable, whatever of it is imported later."""
    __import__(f"fedlib.papers.{name}.presets")
    build = getattr(papers, name)
    assert build is papers.BUILDERS[name]
    assert build("digits", "local") == papers.setting(name, "digits", "local")


@pytest.mark.parametrize("name", papers.PAPERS)
def test_presets_are_of_methods_data_sets_and_fields_that_exist(name):
    paper = papers.TABLES[name]
    for table in (paper.presets, paper.training):
        assert set(table) <= set(registry.METHODS)
        assert {d for rows in table.values() for d in rows} <= {*paper.protocols, "*"}
    for method in {*paper.presets, *paper.training}:
        for dataset in paper.protocols:
            papers.BUILDERS[name](dataset, method)  # refuses unknown fields


SIXTH = {
    "__init__": """
        from fedlib.papers.sixth.protocols import PAPER, sixth
    """,
    "protocols": """
        from fedlib.papers.protocol import Paper, Protocol, spec_of
        from fedlib.papers.source import Accuracies
        from fedlib.partitions import LDA
        PRESETS = {"fedprox": {"*": {"prox_weight": 7.0}}}
        SIXTH = {"digits": Protocol("digits_bn", LDA(alpha=0.3), 9)}
        PAPER = Paper(SIXTH, PRESETS, sources=(Accuracies("sixth", "table1"),))
        def sixth(dataset, method, **changes):
            return spec_of(PAPER, dataset, method, **changes)
    """,
    "special": """
        from fedlib.papers import study
        def twice(p):
            return 2 * study.grid("sixth", p).specs
        SPECIAL = {"sixth/fig1": twice}
    """,
}
ASKED = """
from fedlib import papers, study
from fedlib.rebuild import scoreboard
p = {"dataset": "digits", "runs": ["fedprox"], "seed": 1}
(spec,) = study.specs_for("sixth/table1", p)
assert spec == papers.sixth("digits", "fedprox", seed=1)
assert spec == papers.setting("sixth", "digits", "fedprox", seed=1)
assert (spec.hp["prox_weight"], spec.rounds) == (7.0, 9)
assert study.specs_for("sixth/fig1", p) == [spec, spec]
assert list(papers.PAPERS)[-1] == scoreboard.SOURCES[-1].paper == "sixth"
assert papers.fedpg("digits", "fedprox").hp["prox_weight"] == 0.01
"""


@pytest.mark.slow
def test_a_sixth_paper_is_one_folder_and_one_line(tmp_path: Path):
    copied(tmp_path)
    added = tmp_path / "fedlib/papers/sixth"
    added.mkdir()
    for name, text in SIXTH.items():
        lines = [line.removeprefix(" " * 8) for line in text.splitlines()]
        (added / f"{name}.py").write_text("\n".join(lines))
    where = tmp_path / "fedlib/papers/__init__.py"
    last = "from fedlib.papers.fedpg import fedpg as fedpg\n"
    line = last.replace("fedpg", "sixth")
    where.write_text(where.read_text().replace(last, last + line))
    found = subprocess.run(
        [sys.executable, "-c", ASKED], cwd=tmp_path, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr


def test_papers_are_light_and_no_method_imports_them():
    code = (
        "import sys, fedlib.papers; heavy = {'matplotlib', 'fedlib.papers.study'};"
        "assert not heavy & {*sys.modules}, heavy & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    home = Path(papers.__file__).parents[1]
    for file in [*home.glob("methods/*.py"), *home.glob("baselines/*.py")]:
        assert "fedlib.papers" not in file.read_text(), file
        assert "import papers" not in file.read_text(), file
