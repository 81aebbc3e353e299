"""FedHPro replayed: the slides' algorithm, and the released program, by loops.

Images that the released program has changed for class gradients are taken as drawn.
"""

import copy
from itertools import islice

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib import federation, papers
from fedlib.blocks import siamese
from tests.methods.replay import Digits, average, batches, draws, loaded, means, step

C, D, COUNT, M, TAU, RATE = 10, 32, 5, 6, 0.05, 0.02
FEATURES, FIT, EPOCHS = 6, 4, 3  # of the released program's stage for the head


def huber(u: Tensor) -> Tensor:
    return torch.where(u.abs() <= 1, u**2 / 2, u.abs() - 0.5)


def contrast(z: Tensor, y: Tensor, s: Tensor, margin: Tensor, released: bool) -> Tensor:
    """Eq. (11), (12), sample by sample."""
    total = torch.zeros(())
    for v, c in zip(z, y.tolist(), strict=True):
        near = F.cosine_similarity(v, s, dim=-1).mean(1)
        others = near[[j for j in range(C) if j != c]] + margin
        total = total + (1 + (others / TAU).exp().sum() / (near[c] / TAU).exp()).log()
    return total / len(z) / (len(z) if released else 1)


def align(z: Tensor, y: Tensor, s: Tensor, released: bool) -> Tensor:
    """Eq. (13) on unit vectors, the sum over dimensions; released: their mean."""
    total = torch.zeros(())
    for v, c in zip(z, y.tolist(), strict=True):
        middle = s[c].mean(0)
        each = huber(v / v.norm() - middle / middle.norm())
        total = total + (each.mean() if released else each.sum())
    return total / len(z)


def mismatch(real: Tensor, made: Tensor, released: bool) -> Tensor:
    """Eq. (8); released: a cosine for each coordinate."""
    if released:
        return (1 - real * made / (real.abs() * made.abs() + 1e-6)).sum()
    return 1 - real @ made / (real.norm() * made.norm())


def away(a: Tensor, b: Tensor) -> Tensor:
    return 1 - a @ b / (a.norm() * b.norm() + 1e-6)


def slopes(head: nn.Module, z: Tensor, c: int, wanted, graph: bool = False):
    """Gradients of the mean cross-entropy of points of one class."""
    label = torch.full((len(z),), c)
    loss = F.cross_entropy(head(z), label)
    return torch.autograd.grad(loss, wanted, create_graph=graph)


class Program:
    """Clients and server from the first round on."""

    def __init__(self, fed, released: bool):
        server, mine = fed.method.init(fed.ctx)
        self.fed, self.released = fed, released
        self.model = loaded(Digits("bn"), mine.state, 0)
        self.nets: dict[int, nn.Module] = {}
        self.s = server.hyper.points.clone()  # N(0, 1)
        self.first = self.s.clone()
        if released:
            self.features = server.kept.features.clone()
            self.meta = loaded(self.model.head, server.kept.head)

    def margin(self, net: nn.Module, k: int) -> Tensor:
        """Eq. (10): from all own samples, in eval mode."""
        data, rows = self.fed.train, self.fed.train.index[k]
        with torch.no_grad():
            z = net.eval()(data.x[rows])[1]
            net.train()
        own = data.y[rows].unique().tolist()
        p = {c: z[data.y[rows] == c].mean(0) for c in own}
        return (
            sum(
                (torch.dist(p[a], p[b]) for a in own for b in own if a != b),
                torch.zeros(()),
            )
            / (C - 1) ** 2
        )

    def train(self, number: int, k: int) -> dict[str, float]:
        """Eq. (14)."""
        net = self.nets[k] = copy.deepcopy(self.model)
        sgd, data, terms = (
            torch.optim.SGD(net.parameters(), lr=RATE),
            self.fed.train,
            [],
        )
        if self.released:
            plan = batches(self.fed, number, k)
        else:  # the library shuffles anew where it stops for the margin
            plan = [
                batches(self.fed, number, k, phase, epochs=1)[0]
                for phase in ("", "epoch 1 ")
            ]
        for epoch in plan:
            margin = torch.zeros(()) if self.released else self.margin(net, k)
            for rows in epoch:
                x, y = data.x[rows], data.y[rows]
                _, z, logits = net(x)
                term = {
                    "supervised": F.cross_entropy(logits, y),
                    "contrast": contrast(z, y, self.s, margin, self.released),
                    "align": align(z, y, self.s, self.released),
                    "margin": margin,
                }
                step(sgd, term["supervised"] + term["contrast"] + term["align"])
                terms.append(term)
        return means(terms)

    def gradients(self, number: int, k: int, at: nn.Module) -> dict:
        """Eq. (5): per class, for embeddings; released: for the head, too."""
        data, found = self.fed.train, {}
        rows, pick = data.index[k], draws(self.fed, "gradient samples", number, k)
        net = copy.deepcopy(at).eval()
        if self.released:
            net.head.load_state_dict(self.meta.state_dict())
        for c in data.y[rows].unique().tolist():
            chosen = rows[data.y[rows] == c]
            x = data.x[chosen]
            if self.released:
                some = torch.randperm(len(chosen), generator=pick)[:100]
                x = siamese.augment(data.x[chosen[some]], pick)
            z = net(x)[1].detach().requires_grad_()
            every, *head = slopes(net.head, z, c, [z, *net.head.parameters()])
            mean = every.sum(0)  # of the mean loss: the mean of samples' gradients
            found[c] = (mean / len(z) if self.released else mean, head)
        return found

    def server(self, number: int, cohort: list[int], sent: list[dict]) -> dict:
        samples = torch.tensor([float(len(self.fed.train.index[k])) for k in cohort])
        if self.released:  # one live model: the client that came last
            order = torch.randperm(
                len(cohort), generator=draws(self.fed, "visits", number)
            )
            self.model = copy.deepcopy(self.nets[cohort[int(order[-1])]])
            self.retrain(number, sent)
        else:
            average(self.model, [self.nets[k] for k in cohort], samples)
        real = {}
        for c in range(C):  # Eq. (6)
            owners = [each[c][0] for each in sent if c in each]
            if owners:
                real[c] = sum(owners) / len(owners)
        watched = {}
        for _ in range(M):  # Eq. (7) to (9)
            s = self.s.clone().requires_grad_()
            apart = self.apart(s, real)
            watched.setdefault("mismatch_before", apart.detach() / len(real))
            self.s = (s - 0.1 * torch.autograd.grad(apart, s)[0]).detach()
        watched["mismatch"] = self.apart(self.s.requires_grad_(), real) / len(real)
        self.s = self.s.detach()
        watched["moved"] = (self.s - self.first).norm() / self.first.norm()
        return watched

    def apart(self, s: Tensor, real: dict[int, Tensor]) -> Tensor:
        total = torch.zeros(())
        for c, wanted in real.items():
            (each,) = slopes(self.model.head, s[c], c, [s], graph=True)
            made = each[c].sum(0) / (COUNT if self.released else 1)
            total = total + mismatch(wanted, made, self.released)
        return total

    def retrain(self, number: int, sent: list[dict]) -> None:
        """The released stage: features by their gradients, a fresh head on them."""
        wanted = {}
        for c in range(C):
            owners = [each[c][1] for each in sent if c in each]
            if owners:
                wanted[c] = [
                    sum(parts) / len(owners) for parts in zip(*owners, strict=True)
                ]
        for _ in range(FIT):
            features, total = self.features.clone().requires_grad_(), torch.zeros(())
            parameters = [*self.meta.parameters()]
            for c, (weight, bias) in wanted.items():
                made = slopes(self.meta, features[c], c, parameters, graph=True)
                total = total + sum(map(away, weight, made[0])) + away(bias, made[1])
            slope = torch.autograd.grad(total, features)[0]
            self.features = (features - 0.1 * slope).detach()
        head, pick = nn.Linear(D, C), draws(self.fed, "federated head", number)
        for value in head.parameters():
            nn.init.uniform_(value, -(D**-0.5), D**-0.5, generator=pick)
        sgd = torch.optim.SGD(head.parameters(), lr=0.01)
        x, y = self.features.flatten(0, 1), torch.arange(C).repeat_interleave(FEATURES)
        shuffle = draws(self.fed, "federated batches", number)
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(y), generator=shuffle).split(50):
                step(sgd, F.cross_entropy(head(x[rows]), y[rows]))
        self.meta = nn.Sequential(head)
        self.model.head.load_state_dict(self.meta.state_dict())

    @torch.no_grad()
    def right(self, k: int) -> int:
        """The global model's head over all classes."""
        test, net = self.fed.test, copy.deepcopy(self.model).eval()
        x, y = test.x[test.index[k]], test.y[test.index[k]]
        return int((net(x)[2].argmax(1) == y).sum())


@pytest.mark.parametrize("variant", ["paper", "reference"])
def test_replay(variant, float64, gaps):
    """Two of ten clients in each round, two epochs."""
    hp = {"variant": variant, "hyper_steps": M, "retrain_features": FEATURES}
    hp |= {"retrain_steps": FIT, "retrain_epochs": EPOCHS}
    settings = {"seed": 2, "participation": 0.2, "hp": hp}
    settings |= {"partition": {"variant": "plain"}}  # clients of several sizes
    training = {"local_epochs": 2, "batch_size": 40}
    fed = federation(papers.fedhpro("digits", "fedhpro", training=training, **settings))
    mine, rule = Program(fed, variant == "reference"), fed.method.rule(fed.ctx.hp)
    gaps.tolerance = 3e-7  # the library's class gradients travel in float32
    for after in islice(fed.rounds(), 2):
        number, cohort, received = after.number, after.cohort, mine.model
        terms = [mine.train(number, k) for k in cohort]
        sent = [
            mine.gradients(number, k, received if mine.released else mine.nets[k])
            for k in cohort
        ]
        watched = mine.server(number, cohort, sent)
        for row, k in enumerate(cohort):
            gaps.states("parameters", after.mine.state, mine.nets[k], row)
            for name, value in terms[row].items():
                gaps.add("terms", after.terms[name][row], value)
            up = after.up
            known = up.gradients.known[row].nonzero().flatten().tolist()
            assert known == sorted(sent[row])
            for c, (g, (weight, bias)) in sent[row].items():
                gaps.add("gradients", up.gradients.mean[row, c], g)
                if mine.released:
                    both = torch.cat([weight, bias[:, None]], 1).flatten()
                    gaps.add("gradients", up.head_gradients.mean[row, c], both)
        gaps.states("server", after.server.model.state, mine.model)
        gaps.add("hyper-prototypes", after.server.hyper.points, mine.s)
        if mine.released:
            gaps.add("server", after.server.kept.features, mine.features)
        for name, value in watched.items():
            gaps.add("terms", after.watched[name], value)
        right = fed.evaluate(after)[f"accuracy/{rule.model}/{rule.readout}"]
        gaps.add("predictions", right, [mine.right(k) for k in range(10)])
    gaps.told("FedHPro", variant)
