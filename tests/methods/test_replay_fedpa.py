"""FedPA replayed: Algorithm 1 as printed, and the released program, by loops."""

import copy
from itertools import chain, islice

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib import federation, papers
from tests.methods.replay import Digits, average, batches, draws, loaded, means, step

C, D, B, STEPS, ROWS = 10, 32, 10, 5, 8
LAMBDA_GE, LAMBDA_PO, GAMMA_FID, GAMMA_AD = 25.0, 5.0, 25.0, 0.15
RATE = {"paper": 3e-3, "reference": 0.01}  # Adam's on the digits; SGD's


def feature_generator() -> nn.Module:
    """Noise of 32 numbers and a one-hot label; 256 hidden."""
    layers = (nn.Linear(32 + C, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, D))
    return nn.Sequential(*layers)


def made(network: nn.Module, z: Tensor, y: Tensor) -> Tensor:
    """Eq. (4)."""
    return network(torch.cat([z, F.one_hot(y, C).to(z.dtype)], 1))


def apart(a: Tensor, b: Tensor, released: bool) -> Tensor:
    """Length of the difference, or its mean square over dimensions."""
    return (a - b).square().mean() if released else (a - b).square().sum().sqrt()


def diversity(h: Tensor, z: Tensor, y: Tensor, released: bool) -> Tensor:
    """Eq. (7), pair by pair; the released mask keeps pairs of different classes."""
    total = torch.zeros(())
    for p in range(len(h)):
        for q in range(len(h)):
            if p != q and bool(y[p] == y[q]) != released:
                dh, dz = h[p] - h[q], z[p] - z[q]
                if released:
                    total = total - dh.abs().mean() * dz.square().mean()
                else:
                    total = total - dh.square().sum().sqrt() * dz.square().sum().sqrt()
    return (total / len(h) ** 2).exp()


class Program:
    """Clients and server from the first round on."""

    def __init__(self, fed, released: bool):
        server, mine = fed.method.init(fed.ctx)
        self.fed, self.released, data = fed, released, fed.train
        self.model = loaded(Digits("bn"), mine.state, 0)
        self.nets = [loaded(Digits("bn"), mine.state, k) for k in range(5)]
        self.optimisers = [self.optimiser(net) for net in self.nets]
        self.last = [0] * 5  # the t of a client's last training
        self.generator = loaded(feature_generator(), server.generator)
        self.adam = torch.optim.Adam(
            self.generator.parameters(), lr=3e-4, weight_decay=0.01
        )
        self.phi: dict[int, Tensor] = {}
        self.histogram = [data.y[i].bincount(minlength=C).double() for i in data.index]
        self.p_tilde = torch.zeros(C)

    def optimiser(self, net: nn.Module) -> torch.optim.Optimizer:
        if self.released:
            return torch.optim.SGD(net.parameters(), lr=RATE["reference"])
        return torch.optim.Adam(net.parameters(), lr=RATE["paper"], weight_decay=0.01)

    def noise(self, rows: int, pick: torch.Generator) -> Tensor:
        return (torch.rand if self.released else torch.randn)(rows, 32, generator=pick)

    def client(self, number: int, k: int):
        """Eq. (12), a step per batch; then what is sent."""
        t, net, data = number - 1, self.nets[k], self.fed.train
        ours = dict(net.named_buffers())
        for name, value in self.model.state_dict().items():
            if not (self.released and name in ours):  # its statistics never travel
                net.state_dict()[name].copy_(value)
        self.optimisers[k].param_groups[0]["lr"] = (
            RATE["reference" if self.released else "paper"] * 0.99 ** self.last[k]
        )
        self.last[k] = t
        floor = 1e-4 if self.released else 0.0
        lambda_ge = max(floor, LAMBDA_GE * 0.98**t)
        lambda_po = max(0.15, LAMBDA_PO * 0.98**t)
        theta = copy.deepcopy(self.generator).eval()
        sums, seen, terms = torch.zeros(C, D), torch.zeros(C), []
        plan = chain.from_iterable(batches(self.fed, number, k))
        for number_of_step, rows in enumerate(plan):
            x, y = data.x[rows], data.y[rows]
            _, f, logits = net(x)
            term = {"supervised": F.cross_entropy(logits, y)}  # Eq. (9)
            term |= {"align": torch.zeros(()), "synthetic": torch.zeros(())}
            if t > 0:
                pick = draws(self.fed, f"synthetic {number_of_step}", number, k)
                share = self.p_tilde / self.p_tilde.sum()
                if self.released:  # all classes of the federation alike
                    held = (sum(self.histogram) > 0).double()
                    share = held / held.sum()
                labels = torch.multinomial(share, 32, replacement=True, generator=pick)
                z = self.noise(32, pick)
                with torch.no_grad():
                    h = made(theta, z, labels)
                term["synthetic"] = F.cross_entropy(net.head(h), labels)  # Eq. (11)
                pulls = []
                for v, c in zip(f, y.tolist(), strict=True):
                    if c in self.phi or self.released:  # released: absent at the origin
                        target = self.phi.get(c, torch.zeros(D))
                        pulls.append(apart(v, target, self.released))
                if pulls:
                    term["align"] = torch.stack(pulls).mean()  # Eq. (10)
            scale = 32 / B if self.released else 1.0
            loss = term["supervised"] + lambda_po * term["align"]
            loss = loss + scale * lambda_ge * term["synthetic"]
            step(self.optimisers[k], loss)
            terms.append(term)
            for v, c in zip(f.detach(), y.tolist(), strict=True):
                sums[c] += v
                seen[c] += 1
        phi = {}
        with torch.no_grad():  # Eq. (2)
            rows = data.index[k]
            f = net.eval()(data.x[rows])[1]
            net.train()
        for c in data.y[rows].unique().tolist():
            phi[c] = f[data.y[rows] == c].mean(0)
            if self.released:  # of what was trained on; 0 where that was nothing
                phi[c] = sums[c] / seen[c].clamp(min=1)
        return phi, seen, means(terms)

    def server(self, number: int, cohort: list[int], phis: list, seen: list) -> dict:
        before = self.phi
        own = torch.stack([self.histogram[k] for k in cohort])
        new = {} if self.released else dict(before)
        for c in range(C):  # Eq. (3)
            if own[:, c].sum():
                parts = [
                    n * phi[c] for n, phi in zip(own[:, c], phis, strict=True) if n
                ]
                new[c] = sum(parts) / own[:, c].sum()
        self.phi, self.p_tilde = new, own.sum(0)
        parts = [self.nets[k] for k in cohort]
        average(self.model, parts, own.sum(1), buffers=not self.released)
        return self.train_generator(number, cohort, own, torch.stack(seen), before)

    def train_generator(self, number, cohort, own, seen, before) -> dict[str, float]:
        t, released = number - 1, self.released
        counts = 1 + seen if released else own.float()  # as they travel
        owner = counts / counts.sum(0).clamp(min=1)
        drawn = (seen.sum(0) > 0).double() if released else own.sum(0)
        far = before if released else self.phi
        gamma = max(1e-4 if released else 0.0, GAMMA_FID * 0.98**t)
        self.adam.param_groups[0]["lr"] = 3e-4 * 0.98**t
        heads, terms = [copy.deepcopy(self.nets[k].head) for k in cohort], []
        for i in range(3):
            pick = draws(self.fed, f"generator {i}", number)
            rows = B if released else ROWS
            y = torch.multinomial(drawn, rows, replacement=True, generator=pick)
            z = self.noise(rows, pick)
            h = made(self.generator, z, y)
            fidelity = torch.zeros(())
            for head, p in zip(heads, owner, strict=True):
                entropy = F.cross_entropy(head(h), y, reduction="none")
                if released:
                    fidelity = fidelity + p[y].mean() * entropy.mean()
                else:  # Eq. (5)
                    fidelity = fidelity + (p[y] * entropy).mean() / len(heads)
            away = [
                apart(v, far.get(c, torch.zeros(D)), released)
                for v, c in zip(h, y.tolist(), strict=True)
                if (far if released else c in far)
            ]
            term = {"fidelity": fidelity, "diversity": diversity(h, z, y, released)}
            term["adversarial"] = torch.stack(away).mean() if away else torch.zeros(())
            loss = gamma * fidelity + term["diversity"]
            step(self.adam, loss - GAMMA_AD * term["adversarial"])  # Eq. (8)
            terms.append(term)
        return means(terms)

    @torch.no_grad()
    def right(self, k: int) -> int:
        """The global model; released: its weights, the client's own statistics."""
        net = copy.deepcopy(self.model)
        if self.released:
            for name, value in self.nets[k].named_buffers():
                net.state_dict()[name].copy_(value)
        test = self.fed.test
        x, y = test.x[test.index[k]], test.y[test.index[k]]
        return int((net.eval()(x)[2].argmax(1) == y).sum())


@pytest.mark.parametrize(
    ("variant", "training"),
    [
        ("paper", {"local_steps": STEPS}),
        ("reference", {"local_steps": STEPS}),
        ("reference", {"local_steps": None, "local_epochs": 2}),
    ],
)
def test_replay(variant, training, float64, gaps):
    """Two of five clients in each round, four rounds of five batches or two epochs."""
    hp = {"variant": variant, "generator_steps": 3, "generator_batch": ROWS}
    settings = {"clients": 5, "seed": 3, "participation": 0.4, "hp": hp}
    settings |= {"partition": {"alpha": 0.1}}  # classes come and go
    training = training | {"batch_size": B}
    fed = federation(papers.fedpa("digits", "fedpa", training=training, **settings))
    mine, rule = Program(fed, variant == "reference"), fed.method.rule(fed.ctx.hp)
    for after in islice(fed.rounds(), 4):
        number, cohort = after.number, after.cohort
        sent = [mine.client(number, k) for k in cohort]
        watched = mine.server(
            number, cohort, [s[0] for s in sent], [s[1] for s in sent]
        )
        for row, (k, (phi, _, terms)) in enumerate(zip(cohort, sent, strict=True)):
            gaps.states("parameters", after.mine.state, mine.nets[k], k)
            up = after.up.protos
            assert up.known[row].nonzero().flatten().tolist() == sorted(phi)
            for c, value in phi.items():
                gaps.add("prototypes", up.mean[row, c], value)
            for name, value in terms.items():
                gaps.add("terms", after.terms[name][row], value)
            gaps.add("server", after.up.labels[row], mine.histogram[k])
        gaps.states("server", after.server.model.state, mine.model)
        gaps.states("generator", after.server.generator, mine.generator)
        for name, value in watched.items():
            gaps.add("terms", after.watched[name], value)
        found = after.server.protos
        assert found.known.nonzero().flatten().tolist() == sorted(mine.phi)
        for c, value in mine.phi.items():
            gaps.add("prototypes", found.mean[c], value)
        right = fed.evaluate(after)[f"accuracy/{rule.model}/{rule.readout}"]
        gaps.add("predictions", right, [mine.right(k) for k in range(5)])
    gaps.told("FedPA", variant)
