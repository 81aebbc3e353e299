"""FedMPS replayed: Algorithm 1 as printed, and the re-uploaded program, by loops."""

from itertools import islice

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedlib import federation, papers
from fedlib.core.log import NOT_EVALUATED
from tests.methods.replay import Digits, batches, draws, loaded, means, step

TAU_1, TAU_2, ALPHA, BETA, LAMBDA, MU = 0.5, 5.0, 0.2, 1.5, 0.7, 5.0
WEIGHTS = {"low_weight": ALPHA, "high_weight": BETA, "contrast_weight": LAMBDA}
Table = dict[int, Tensor]  # by class


def contrast(z: Tensor, y: Tensor, prototypes: Table, released: bool) -> Tensor:
    """Eq. (3): anchor by anchor over {z} and the prototype of each z's class."""
    partners = [prototypes.get(int(c), v.detach()) for v, c in zip(z, y, strict=True)]
    v, label = [*z, *partners], [*y.tolist(), *y.tolist()]
    total = torch.zeros(())
    for i in range(len(v)):
        others = [a for a in range(len(v)) if a != i]
        similar = torch.stack([v[a] for a in others]) @ v[i] / TAU_1
        log_share = similar - similar.exp().sum().log()
        positive = [n for n, a in enumerate(others) if label[a] == label[i]]
        total = total - log_share[positive].mean()
    factor = TAU_1 / 0.07 if released else 1.0  # of the public SupCon code
    return factor * total / len(v)


def divergence(logits: Tensor, y: Tensor, soft: Table) -> Tensor:
    """Eq. (5), (6): mean over the batch; a class without soft label adds nothing."""
    total = torch.zeros(())
    for scores, c in zip(logits, y.tolist(), strict=True):
        if c in soft:
            q = torch.softmax(scores / TAU_2, 0)
            total = total + (soft[c] * (soft[c] / q).log()).sum()
    return total / len(y)


def class_means(z: Tensor, y: Tensor) -> Table:
    return {int(c): z[y == c].mean(0) for c in y.unique()}


def over_owners(uploads: list[Table], c: int) -> list[Tensor]:
    return [each[c] for each in uploads if c in each]


class Program:
    """Clients and server from the first round on."""

    def __init__(self, fed, released: bool):
        server, mine = fed.method.init(fed.ctx)
        self.fed, self.released = fed, released
        self.nets = [loaded(Digits("cnn"), mine.state, k) for k in range(4)]
        first, other = (next(self.nets[k].parameters()) for k in (0, 1))
        assert not torch.equal(first, other)  # silent; released: each its own draw
        self.head = loaded(Digits("cnn").head, server.head)
        self.low: Table = {}
        self.high: Table = {}
        self.soft: Table = {}

    def client(self, number: int, k: int) -> tuple[Table, Table, dict[str, float]]:
        net, data = self.nets[k], self.fed.train
        sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
        terms, seen = [], []
        for epoch in batches(self.fed, number, k):
            seen = []
            for rows in epoch:
                x, y = data.x[rows], data.y[rows]
                low, high, logits = net(x)
                term = {"supervised": F.cross_entropy(logits, y)}
                for name in ("contrast_low", "contrast_high", "soft"):
                    term[name] = torch.zeros(())
                if self.high:  # not in the first round
                    level = contrast(low, y, self.low, self.released)
                    term["contrast_low"] = level
                    level = contrast(high, y, self.high, self.released)
                    term["contrast_high"] = level
                    term["soft"] = divergence(logits, y, self.soft)
                contrastive = ALPHA * term["contrast_low"]
                contrastive = contrastive + BETA * term["contrast_high"]
                loss = term["supervised"] + LAMBDA * contrastive + MU * term["soft"]
                step(sgd, loss)
                terms.append(term)
                seen.append((low.detach(), high.detach(), y))
        with torch.no_grad():  # all own samples, after training
            rows = data.index[k]
            low, high, _ = net.eval()(data.x[rows])
            net.train()
        found = [class_means(z, data.y[rows]) for z in (low, high)]
        if self.released:  # what training saw; a class it lost is made up for by ours
            low, high, y = (torch.cat(part) for part in zip(*seen, strict=True))
            found = [
                f | class_means(z, y) for f, z in zip(found, (low, high), strict=True)
            ]
        return found[0], found[1], means(terms)

    def server(self, number: int, low: list[Table], high: list[Table]) -> None:
        rate = 1e-3
        optimiser = torch.optim.Adam(self.head.parameters(), lr=rate)
        if not self.released:
            optimiser = torch.optim.SGD(self.head.parameters(), lr=0.01, momentum=0.5)
        points = [(c, p) for c in range(10) for p in over_owners(high, c)]
        points.sort(key=lambda at: (at[0], float(at[1].sum())))  # the library's order
        y = torch.tensor([c for c, _ in points])
        p = torch.stack([p for _, p in points])
        shuffle = draws(self.fed, "server batches", number)
        for _ in range(6):
            for rows in torch.randperm(len(y), generator=shuffle).split(4):
                step(optimiser, F.cross_entropy(self.head(p[rows]), y[rows]))  # Eq. (7)
        for c in y.unique().tolist():
            self.low[c] = torch.stack(over_owners(low, c)).mean(0)
            self.high[c] = torch.stack(over_owners(high, c)).mean(0)
            with torch.no_grad():
                scores = [self.head(p) for p in over_owners(high, c)]
            if self.released:
                mean = sum(scores) / len(scores)
                self.soft[c] = torch.softmax(mean / TAU_2, 0)
            else:  # Eq. (8)
                each = [torch.softmax(s / TAU_2, 0) for s in scores]
                self.soft[c] = sum(each) / len(each)

    @torch.no_grad()
    def right(self, k: int) -> int:
        """Nearest global high prototype among the client's own classes."""
        test, own = self.fed.test, self.fed.train.y[self.fed.train.index[k]].unique()
        usable = [c for c in own.tolist() if c in self.high]
        x, y = test.x[test.index[k]], test.y[test.index[k]]
        _, high, _ = self.nets[k](x)
        if not usable:
            return NOT_EVALUATED
        far = torch.stack(
            [(high - self.high[c]).square().mean(1) for c in usable], dim=1
        )
        return int((torch.tensor(usable)[far.argmin(1)] == y).sum())


@pytest.mark.parametrize("variant", ["paper", "reference"])
def test_replay(variant, float64, gaps):
    """Two of four clients in each round, so that classes come and go."""
    hp = {"variant": variant, "soft_weight": MU} | WEIGHTS
    settings = {"clients": 4, "seed": 3, "participation": 0.5}
    training = {"local_epochs": 2}
    fed = federation(
        papers.fedmps("digits", "fedmps", hp=hp, training=training, **settings)
    )
    mine, rule = Program(fed, variant == "reference"), fed.method.rule(fed.ctx.hp)
    carried = 0
    for after in islice(fed.rounds(), 3):
        sent = [mine.client(after.number, k) for k in after.cohort]
        mine.server(after.number, [s[0] for s in sent], [s[1] for s in sent])
        for row, (k, (low, high, terms)) in enumerate(
            zip(after.cohort, sent, strict=True)
        ):
            gaps.states("parameters", after.mine.state, mine.nets[k], k)
            for level, wanted in (("low", low), ("high", high)):
                found = getattr(after.up, level)
                assert found.known[row].nonzero().flatten().tolist() == sorted(wanted)
                for c, p in wanted.items():
                    gaps.add("prototypes", found.mean[row, c], p)
            for name, value in terms.items():
                gaps.add("terms", after.terms[name][row], value)
        gaps.states("server", after.server.head, mine.head)
        for level in ("low", "high", "soft"):
            found, wanted = getattr(after.server, level), getattr(mine, level)
            assert found.known.nonzero().flatten().tolist() == sorted(wanted)
            for c, p in wanted.items():
                gaps.add("server", found.mean[c], p)
            carried += len(wanted) - int(after.up.high.known.any(0).sum())
        right = fed.evaluate(after)[f"accuracy/{rule.model}/{rule.readout}"]
        gaps.add("predictions", right, [mine.right(k) for k in range(4)])
    assert carried  # from a round whose cohort held the class
    gaps.told("FedMPS", variant)
