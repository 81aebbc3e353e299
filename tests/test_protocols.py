"""The papers' settings of every data set: legal, as the sheets say, and runnable."""

import pytest
import torch

from fedlib import data, nets, papers, runs
from fedlib.data import Transform
from fedlib.federation import federation
from fedlib.partition import (
    LDA,
    NID1,
    CappedDirichlet,
    DomainSkew,
    NwayKshot,
    Users,
)
from tests.conftest import TOY
from tests.test_data_leaf import users, write, write_faces

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
SHEETS = {
    ("fedmps", "flowers"): ("lenet", 400, 20, 20, 8, 1, 0.01, "clients"),
    ("fedmps", "defungi"): ("lenet", 800, 20, 20, 8, 1, 0.01, "clients"),
    ("fedmps", "realwaste"): ("lenet", 6000, 20, 20, 8, 1, 0.01, "clients"),
    ("fedmps", "femnist"): ("femnist_cnn", 1000, 20, 20, 8, 1, 0.01, "clients"),
    ("gfpl", "femnist"): ("femnist_cnn", 110, 20, 20, 4, 1, 0.01, "clients"),
    ("gfpl", "cifar100"): ("resnet18", 80, 20, 20, 32, 1, 0.01, "clients"),
    ("fedpa", "emnist"): ("fedpa_cnn", 200, 20, 10, 32, 1, 1e-4, "pooled"),
    ("fedpa", "celeba"): ("fedpa_cnn_celeba", 200, 20, 10, 32, 1, 3e-4, "pooled"),
    ("fedhpro", "cifar100"): ("resnet10", 100, 10, 10, 64, 10, 0.1, "full"),
    ("fedhpro", "tiny_imagenet"): ("resnet10", 100, 10, 10, 64, 10, 0.1, "full"),
    ("fedhpro", "ham10000"): ("resnet10", 100, 10, 10, 64, 10, 0.1, "full"),
    ("fedhpro", "digits_domains"): ("resnet10", 100, 20, 20, 64, 10, 0.01, "groups"),
    ("fedhpro", "office_caltech"): ("resnet10", 100, 10, 10, 64, 10, 0.01, "groups"),
    ("fedpg", "cifar100"): ("resnet50", 200, 100, 10, 64, 3, 0.1, "full"),
    ("fedpg", "femnist_writers"): ("convnet5", 400, 200, 10, 64, 1, 0.1, "pooled"),
}


@pytest.mark.parametrize(("paper", "dataset"), SHEETS)
def test_settings_of_the_sheets(paper, dataset):
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
    ) == SHEETS[paper, dataset]


def test_gradients_are_clipped_in_fedpgs_settings_alone():
    """The norm stands beside the learning rate in the notebook that both come from."""
    found = {p.training.clip for p in papers.FEDPG.values()}
    others = {
        protocol.training.clip
        for paper, protocols in papers.PAPERS.items()
        for protocol in protocols.values()
        if paper != "fedpg"
    }
    assert (found, others) == ({5.0}, {None})


def test_partitions_of_the_sheets():
    found = {pair: papers.PAPERS[pair[0]][pair[1]].partition for pair in SHEETS}
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


def test_transforms_are_the_data_sets():
    found = {
        (paper, name): here(paper, name).transform
        for paper, name in ALL
        if name in ("cifar10", "fashion", "celeba", "femnist_writers", "digits")
    }
    assert found == {
        ("gfpl", "cifar10"): None,
        ("gfpl", "digits"): None,
        ("fedpa", "fashion"): Transform(mean=(0.5,), std=(0.5,)),
        ("fedpa", "celeba"): Transform(mean=(0.0,) * 3, std=(1 / 255,) * 3),
        ("fedpa", "digits"): None,
        ("fedmps", "cifar10"): None,
        ("fedmps", "fashion"): None,
        ("fedmps", "digits"): None,
        ("fedhpro", "cifar10"): Transform(
            mean=(0.4914, 0.4822, 0.4465),
            std=(0.2023, 0.1994, 0.2010),
            padding=4,
            flip=True,
        ),
        ("fedhpro", "digits"): None,
        ("fedpg", "cifar10"): Transform(
            mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)
        ),
        ("fedpg", "femnist_writers"): Transform(mean=(0.1307,), std=(0.3081,), side=64),
        ("fedpg", "digits"): None,
    }
    own = papers.fedpg("femnist_writers", "fedavg", transform={"side": 32})
    assert own.transform == Transform(side=32)


def test_fedpa_on_faces(source):
    write_faces(source)
    scheme = {"users_per_client": 1}
    changes = {"rounds": 1, "clients": 2, "participation": 1.0, "partition": scheme}
    spec = papers.fedpa("celeba", "fedpa", hp=TOY["fedpa"], **changes)
    fed = federation(spec)
    assert float(fed.train.x.max()) > 200  # pixels as they are
    result = runs.run(spec)
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
    result = runs.run(spec)
    assert float(result.log.samples.sum()) == 18
