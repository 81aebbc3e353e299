"""FedPG replayed: the algorithm as printed, and the released programs, by loops."""

import copy
from itertools import islice

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib import federation, papers
from fedlib.blocks import image_generators
from fedlib.methods import fedpg
from tests.methods.replay import Digits, average, batches, draws, loaded, means, step

C, D, RATE, CLIP = 10, 32, 0.1, 5.0
STEPS, MADE, SUPPORT, PER_CLASS, PER_BATCH, NOISE = 5, 12, 6, 3, 11, 8  # all but small
LAMBDA_S, TAU_G, TAU_A = 0.001, 2.0, 0.07
# Weights of l_ct and l_fa, and the last round that makes images, here the first.
VARIANTS = {
    "paper": (1.0, 1.0, None),
    "reference": (1.0, 1.0, 1),
    "notebook": (1.0, 20.0, 1),
    "script": (0.5, 0.1, None),
}


def image_generator() -> nn.Module:
    """The released one, but two narrow hidden layers."""
    layers, inputs = [], NOISE + C
    for size in (16, 24):
        layers += [nn.Linear(inputs, size), nn.BatchNorm1d(size), nn.LeakyReLU(0.2)]
        inputs = size
    return nn.Sequential(
        *layers, nn.Linear(inputs, 64), nn.Tanh(), nn.Unflatten(1, (1, 8, 8))
    )


def made(network: nn.Module, noise: Tensor, y: Tensor) -> Tensor:
    return network(torch.cat([noise, F.one_hot(y, C).to(noise.dtype)], 1))


def supcon(v: Tensor, y: Tensor) -> Tensor:
    """SupCon; an anchor without a positive counts as 0 in the mean."""
    total = torch.zeros(())
    for i in range(len(v)):
        others = [a for a in range(len(v)) if a != i]
        similar = v[others] @ v[i] / TAU_A
        share = similar - similar.exp().sum().log()
        positive = y[others] == y[i]
        if positive.any():
            total = total - share[positive].mean()
    return total / len(v)


def align(z: Tensor, y: Tensor, virtual: Tensor, labels: Tensor, released: bool):
    """Eq. (11) on unit vectors; released: SupCon over own and constant virtual ones."""
    z, virtual = F.normalize(z), F.normalize(virtual)
    if released:
        union = torch.cat([z, virtual.detach()])
        return supcon(union, torch.cat([y, labels])) + 0.1 * supcon(virtual, labels)
    each = []
    for v, c in zip(z, y, strict=True):
        similar = (virtual @ v / TAU_A).exp()
        own, others = similar[labels == c], similar[labels != c]
        if len(own) and len(others):
            each.append(-(own.sum() / others.sum()).log())
    return torch.stack(each).mean() if each else torch.zeros(())


def logit(a: Tensor, b: Tensor, released: bool) -> Tensor:
    """Minus the length over tau; released: minus twice the square."""
    square = (a - b).square().sum(-1)
    return -2 * square if released else -square.sqrt() / TAU_G


class Program:
    """Clients and server from the first round on."""

    def __init__(self, fed, variant: str):
        server, mine = fed.method.init(fed.ctx)
        self.fed, self.released = fed, variant != "paper"
        self.lambda_t, self.lambda_c, self.until = VARIANTS[variant]
        self.model = loaded(Digits("bn"), mine.state, 0)
        self.nets: dict[int, nn.Module] = {}
        self.generator = loaded(image_generator(), server.generator)
        self.virtual: tuple[Tensor, Tensor] | None = None  # D' of the round before

    def makes_images(self, number: int) -> bool:
        return self.until is None or number <= self.until

    def train(self, number: int, k: int) -> dict[str, float]:
        """Eq. (13)."""
        net = self.nets[k] = copy.deepcopy(self.model)
        sgd, data, terms = (
            torch.optim.SGD(net.parameters(), lr=RATE),
            self.fed.train,
            [],
        )
        pick = draws(self.fed, "virtual batches", number, k)
        cycle = torch.randperm(C * PER_CLASS, generator=pick).split(PER_BATCH)
        plan = [rows for epoch in batches(self.fed, number, k) for rows in epoch]
        for place, rows in enumerate(plan):
            x, y = data.x[rows], data.y[rows]
            term = {"tuning": torch.zeros(()), "align": torch.zeros(())}
            if self.virtual is None:
                _, _, logits = net(x)
            else:
                v, labels = (part[cycle[place % len(cycle)]] for part in self.virtual)
                if self.released:
                    _, z, logits = net(x)
                    _, zv, scores = net(v)
                else:
                    _, both, all_scores = net(torch.cat([x, v]))
                    z, zv = both[: len(x)], both[len(x) :]
                    logits, scores = all_scores[: len(x)], all_scores[len(x) :]
                term["tuning"] = F.cross_entropy(scores, labels)  # Eq. (12)
                term["align"] = align(z, y, zv, labels, self.released)
            term["supervised"] = F.cross_entropy(logits, y)
            loss = term["supervised"] + self.lambda_t * term["tuning"]
            sgd.zero_grad()
            (loss + self.lambda_c * term["align"]).backward()
            nn.utils.clip_grad_norm_(net.parameters(), CLIP)
            sgd.step()
            terms.append(term)
        return means(terms)

    @torch.no_grad()
    def prototypes(self, number: int, k: int) -> dict[int, Tensor]:
        """Eq. (4): m samples of each class, in eval mode."""
        if not self.makes_images(number):
            return {}
        data, pick, found = self.fed.train, draws(self.fed, "support", number, k), {}
        net, rows = copy.deepcopy(self.nets[k]).eval(), self.fed.train.index[k]
        for c in data.y[rows].unique().tolist():
            chosen = rows[data.y[rows] == c]
            if len(chosen) > SUPPORT and self.released:
                chosen = chosen[torch.randint(len(chosen), (SUPPORT,), generator=pick)]
            elif len(chosen) > SUPPORT:
                chosen = chosen[torch.randperm(len(chosen), generator=pick)[:SUPPORT]]
            found[c] = net(data.x[chosen])[1].mean(0)
        return found

    def server(self, number: int, cohort: list[int], sent: list[dict]) -> dict:
        samples = torch.tensor([float(len(self.fed.train.index[k])) for k in cohort])
        average(self.model, [self.nets[k] for k in cohort], samples)  # Eq. (2)
        self.virtual = None
        if not self.makes_images(number):
            return {}
        p = {}
        for c in range(C):  # Eq. (5)
            owners = [each[c] for each in sent if c in each]
            if owners:
                p[c] = sum(owners) / len(owners)
        watched = self.train_generator(number, p)
        y = torch.tensor([c for c in range(C) for _ in range(PER_CLASS)])
        noise = torch.rand(len(y), NOISE, generator=draws(self.fed, "virtual", number))
        with torch.no_grad():
            images = made(copy.deepcopy(self.generator).eval(), noise, y)
            scores = copy.deepcopy(self.model).eval()(images)[2]
        self.virtual = images, y
        return watched | {"right": float((scores.argmax(1) == y).double().mean())}

    def train_generator(self, number: int, p: dict[int, Tensor]) -> dict[str, float]:
        released, pick = self.released, draws(self.fed, "generator", number)
        fresh = torch.randn(C, D, generator=draws(self.fed, "anchors", number))
        anchors, f = nn.Parameter(fresh.clone()), copy.deepcopy(self.model).eval()
        trained = [*self.generator.parameters(), anchors]
        if released:
            trained += f.parameters()  # the copy of the model moves, too
        adam = torch.optim.Adam(trained, lr=2e-5, betas=(0.5, 0.999))
        schedule, terms = torch.optim.lr_scheduler.StepLR(adam, 2, 0.95), []
        rivals = range(C) if released else sorted(p)
        real = torch.stack([p.get(c, torch.zeros(D)) for c in rivals])
        for _ in range(STEPS):
            y = torch.randint(C, (MADE,), generator=pick)
            noise = torch.rand(MADE, NOISE, generator=pick)
            z = f(made(self.generator, noise, y))[1]
            each = []
            for v, c in zip(z, y.tolist(), strict=True):  # Eq. (8)
                scores = logit(v, anchors, released).exp()
                below = scores.sum() if released else scores.sum() - scores[c]
                each.append(below.log() - logit(v, anchors[c], released))
            gaps = []
            for c in p:  # Eq. (7), Eq. (6)
                scores = logit(anchors[c], real, released).exp()
                gaps.append(scores.sum().log() - logit(anchors[c], p[c], released))
            distance = torch.stack(gaps).sum()
            term = {
                "entropy": torch.stack(each).mean(),
                "proto": (z - anchors[y]).square().sum(1).mean(),  # Eq. (9)
                "distance": distance / len(p) if released else distance,
            }
            loss = term["entropy"] + LAMBDA_S * term["proto"] + term["distance"]
            step(adam, loss)  # Eq. (10)
            schedule.step()
            terms.append(term)
        lengths = [
            {"gap_before": (fresh[c] - p[c]).norm(), "gap": (anchors[c] - p[c]).norm()}
            for c in p
        ]
        self.anchors = anchors.detach()
        return means(terms) | means(lengths)

    @torch.no_grad()
    def right(self, k: int) -> int:
        """The global model's head over all classes."""
        test, net = self.fed.test, copy.deepcopy(self.model).eval()
        x, y = test.x[test.index[k]], test.y[test.index[k]]
        return int((net(x)[2].argmax(1) == y).sum())


@pytest.mark.parametrize("variant", VARIANTS)
def test_replay(variant, float64, gaps, monkeypatch):
    """Two of four clients in each round; where images stop, round 3 has none."""
    monkeypatch.setattr(image_generators, "HIDDEN", (16, 24))
    fit = fedpg.train_generator

    def in_float64(ctx, weights, model, real, anchors):
        exact = real._replace(mean=real.mean.double())
        return fit(ctx, weights, model, exact, anchors)

    monkeypatch.setattr(fedpg, "train_generator", in_float64)
    hp = {"variant": variant, "virtual_per_class": PER_CLASS, "support": SUPPORT}
    hp |= {"v_batch_size": PER_BATCH, "noise_size": NOISE, "generator_steps": STEPS}
    hp |= {"generator_batch_size": MADE, "generator_decay_every": 2}
    until = VARIANTS[variant][2]
    hp |= {} if until is None else {"virtual_until": until}
    settings = {"clients": 4, "seed": 6, "participation": 0.5, "hp": hp}
    settings |= {"partition": {"alpha": 0.2}}  # round 1 has no 4, 6 and 7
    training = {"batch_size": 24, "local_steps": 4}
    fed = federation(papers.fedpg("digits", "fedpg", training=training, **settings))
    mine, rule = Program(fed, variant), fed.method.rule(fed.ctx.hp)
    gaps.tolerance = 3e-7  # the library's global prototypes are float32
    for after in islice(fed.rounds(), 3 if variant == "reference" else 2):
        number, cohort = after.number, after.cohort
        assert bool(after.down.virtual.known) == (mine.virtual is not None)
        terms = [mine.train(number, k) for k in cohort]
        sent = [mine.prototypes(number, k) for k in cohort]
        watched = mine.server(number, cohort, sent)
        for row, k in enumerate(cohort):
            gaps.states("parameters", after.mine.state, mine.nets[k], row)
            for name, value in terms[row].items():
                gaps.add("terms", after.terms[name][row], value)
            known = after.up.protos.known[row].nonzero().flatten().tolist()
            assert known == sorted(sent[row])
            for c, value in sent[row].items():
                gaps.add("prototypes", after.up.protos.mean[row, c], value)
        gaps.states("server", after.server.model.state, mine.model)
        gaps.states("generator", after.server.generator, mine.generator)
        gaps.add("generator", after.server.anchors, mine.anchors)
        if mine.virtual is not None:
            gaps.add("images", after.server.images, mine.virtual[0])
        for name, value in watched.items():
            gaps.add("terms", after.watched[name], value)
        right = fed.evaluate(after)[f"accuracy/{rule.model}/{rule.readout}"]
        gaps.add("predictions", right, [mine.right(k) for k in range(4)])
    gaps.told("FedPG", variant)
