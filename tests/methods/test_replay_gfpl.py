"""GFPL replayed: Algorithms 1 and 2 by loops, as read here and as printed.

Mixtures are scikit-learn's on both sides, from the same start.
"""

from itertools import islice

import pytest
import torch
import torch.nn.functional as F
from sklearn.mixture import GaussianMixture
from torch import Tensor, nn

from fedlib import federation, papers
from tests.methods.replay import Digits, batches, draws, loaded, means, step

LAMBDA, N, R, FLOOR, RATE = 2.0, 3, 5, 1e-6, 0.1
Gaussian = tuple[Tensor, Tensor, float]  # mean [d], variance [d], weight

SWITCHES = [
    {},  # the default: what stands in the paper's text
    {"order": "in_batches"},  # Algorithm 2
    {"distance": "mean", "projection_size": 16},  # Table 3's and 5.1's d
    {"schedule": "multiples"},  # Algorithm 2
    {"order": "in_batches", "retrain": "projection"},  # Algorithm 2 to the letter
    {"linkage": "strict", "component_weight": "pi", "clamp": True},
    {"dual_classifier": False},  # Table 2
    {"pseudo": False},  # Table 2
]


def apart(a: Gaussian, b: Gaussian, mean: bool) -> float:
    """Eq. (7) of each dimension; their sum is Eq. (8)."""
    (m, v, _), (n, w, _) = a, b
    middle = (v + w) / 2
    each = (m - n) ** 2 / (8 * middle) + (middle / (v * w).sqrt()).log() / 2
    return float(each.sum()) / (len(m) if mean else 1)


def fused(pool: list[Gaussian], s_c: float, mean: bool, strict: bool):
    """Algorithm 1: who is near every member joins, all at once; then moments."""
    left = sorted(pool, key=lambda g: (g[0].tolist(), g[1].tolist(), g[2]))
    merged = []
    while left:
        cluster = [left.pop(0)]
        while True:
            near = [
                i
                for i, g in enumerate(left)
                if all(apart(g, other, mean) < s_c for other in cluster)
            ][: 1 if strict else None]
            if not near:
                break
            cluster += [left[i] for i in near]
            left = [g for i, g in enumerate(left) if i not in near]
        weight = sum(w for _, _, w in cluster)
        centre = sum(w * m for m, _, w in cluster) / weight
        spread = sum(w * (v + (m - centre) ** 2) for m, v, w in cluster) / weight
        merged.append((centre, spread, weight))
    return merged


class Program:
    """Clients and server from the first round on."""

    def __init__(self, fed, switches: dict):
        server, mine = fed.method.init(fed.ctx)
        self.fed, self.on, self.z = fed, switches, server.simplex.double()
        self.dual = switches.get("dual_classifier", True)
        if self.dual:
            cosines = self.z.T @ self.z  # Eq. (9), (10): unit vectors at equal angles
            wanted = torch.eye(10) * 10 / 9 - torch.ones(10, 10) / 9
            torch.testing.assert_close(cosines, wanted, rtol=0, atol=1e-6)
        self.nets = [loaded(Digits("linear"), mine.state, k) for k in range(3)]
        size = switches.get("projection_size", 32)
        self.projections = [nn.Linear(32, size) for _ in range(3)]
        for k, layer in enumerate(self.projections if self.dual else []):
            own = {n: mine.state[f"own.projection.{n}"][k] for n in ("weight", "bias")}
            layer.load_state_dict(own)
        self.global_: dict[int, list[Gaussian]] = {}

    def exchanges(self, number: int) -> bool:
        """From round 1 on every other round, or in multiples of 2."""
        since = number if self.on.get("schedule") == "multiples" else number - 1
        return self.on.get("pseudo", True) and since % 2 == 0

    def loss(self, k: int, f: Tensor, logits: Tensor, y: Tensor):
        """Eq. (13), which is Eq. (14), too."""
        terms = {"supervised": F.cross_entropy(logits, y)}
        if not self.dual:
            return terms["supervised"], terms
        hat = self.projections[k](f)
        h = hat / hat.norm(dim=1, keepdim=True)  # Eq. (11)
        products = torch.stack([a @ self.z[:, c] for a, c in zip(h, y, strict=True)])
        terms["alignment"] = ((products - 1) ** 2 / 2).mean()  # Eq. (12)
        return LAMBDA * terms["alignment"] + terms["supervised"], terms

    def sgd(self, k: int, whole: bool) -> torch.optim.Optimizer:
        """Over everything, or over what is retrained."""
        parts = [*self.projections[k].parameters()] if self.dual else []
        if whole:
            parts += self.nets[k].parameters()
        elif self.on.get("retrain", "both") == "both":
            parts += self.nets[k].head.parameters()
        return torch.optim.SGD(parts, lr=RATE, momentum=0.5)

    def pseudo_features(self, number: int, k: int, phase: str = ""):
        """Eq. (4): r of each class, by the library's draws."""
        pick = draws(self.fed, f"{phase}pseudo-features", number, k)
        known = sorted(self.global_)
        longest = 3 * N  # components that the server has room for
        weights = torch.zeros(len(known), longest)
        for row, c in enumerate(known):
            weights[row, : len(self.global_[c])] = torch.tensor(
                [w for _, _, w in self.global_[c]]
            )
        chosen = torch.multinomial(weights, R, replacement=True, generator=pick)
        noise = torch.randn(len(known), R, 32, generator=pick)
        points = [
            self.global_[c][i][0] + self.global_[c][i][1].sqrt() * noise[row, j]
            for row, c in enumerate(known)
            for j, i in enumerate(chosen[row].tolist())
        ]
        x = torch.stack(points)
        x = x.clamp(min=0) if self.on.get("clamp") else x
        return x, torch.tensor([c for c in known for _ in range(R)])

    def train(self, number: int, k: int) -> dict[str, float]:
        net, data = self.nets[k], self.fed.train
        printed = self.on.get("order") == "in_batches"
        alternate = printed and self.exchanges(number) and self.global_
        sgd, again = self.sgd(k, True), self.sgd(k, False) if alternate else None
        terms = []
        plan = [rows for epoch in batches(self.fed, number, k) for rows in epoch]
        for place, rows in enumerate(plan):
            x, y = data.x[rows], data.y[rows]
            _, f, logits = net(x)
            loss, term = self.loss(k, f, logits, y)
            step(sgd, loss)
            if again is not None:
                f, y = self.pseudo_features(number, k, f"step {place} ")
                loss, extra = self.loss(k, f, net.head(f), y)
                step(again, loss)
                term |= {f"retrain_{name}": value for name, value in extra.items()}
            terms.append(term)
        return means(terms)

    @torch.no_grad()
    def mixtures(self, number: int, k: int) -> dict[int, tuple[list[Gaussian], int]]:
        """Eq. (5), (6): after training, in eval mode; and the number of samples."""
        data, net, found = self.fed.train, self.nets[k].eval(), {}
        rows = data.index[k]
        f = net(data.x[rows])[1]
        net.train()
        pick = draws(self.fed, "mixtures", number, k)
        seeds = torch.randint(2**31, (10,), generator=pick)
        for c in data.y[rows].unique().tolist():
            points = f[data.y[rows] == c]
            centre = points.mean(0)  # around 0 sums of squares lose fewer digits
            model = GaussianMixture(
                N,
                covariance_type="diag",
                init_params="k-means++",
                max_iter=100,
                tol=1e-3,
                reg_covar=FLOOR,
                random_state=int(seeds[c]),
            ).fit((points - centre).numpy())
            parts = zip(model.means_, model.covariances_, model.weights_, strict=True)
            own = [(centre + torch.tensor(m), torch.tensor(v), w) for m, v, w in parts]
            found[c] = own, len(points)
        return found

    def merge(self, uploads: list[dict]) -> None:
        pi = self.on.get("component_weight") == "pi"
        mean, strict = self.on.get("distance") == "mean", "linkage" in self.on
        for c in sorted({c for each in uploads for c in each}):
            owners = [each[c] for each in uploads if c in each]
            pool = []
            for own, count in owners:
                pool += [(m, v, w if pi else w * count) for m, v, w in own]
            whole = sum(w for _, _, w in pool)
            pool = [(m, v, w / whole) for m, v, w in pool]
            self.global_[c] = fused(pool, S_C[mean], mean, strict)

    def retrain(self, number: int, k: int) -> dict[str, float]:
        """One pass in batches of the run's size, over head and projection."""
        f, y = self.pseudo_features(number, k)
        sgd, terms = self.sgd(k, False), []
        shuffle = draws(self.fed, "retrain batches", number, k)
        for rows in torch.randperm(len(y), generator=shuffle).split(8):
            loss, term = self.loss(k, f[rows], self.nets[k].head(f[rows]), y[rows])
            step(sgd, loss)
            terms.append({f"retrain_{name}": value for name, value in term.items()})
        return means(terms)

    @torch.no_grad()
    def right(self, k: int) -> int:
        """The head over all classes, on the client's own test images."""
        test = self.fed.test
        x, y = test.x[test.index[k]], test.y[test.index[k]]
        return int((self.nets[k](x)[2].argmax(1) == y).sum())


S_C = {False: 150.0, True: 4.0}  # some merge and some do not, by sum and by mean


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_replay(switches, float64, gaps):
    """Exchanges in rounds 1 and 3 (or 2 and 4), among two of three clients."""
    mean = switches.get("distance") == "mean"
    hp = {"components": N, "pseudo_features": R, "merge_threshold": S_C[mean]}
    hp |= {"first_exchange": 1, "exchange_every": 2, **switches}
    settings = {"clients": 3, "seed": 4, "participation": 0.67, "hp": hp}
    fed = federation(papers.gfpl("digits", "gfpl", **settings))
    mine, rule = Program(fed, switches), fed.method.rule(fed.ctx.hp)
    merged = 0
    for after in islice(fed.rounds(), 4 if "schedule" in switches else 3):
        number, sent = after.number, []
        now = mine.exchanges(number)
        terms = [mine.train(number, k) for k in after.cohort]
        if now:
            sent = [mine.mixtures(number, k) for k in after.cohort]
            mine.merge(sent)
            merged += int(after.watched["merged"])
            if switches.get("order") != "in_batches":
                for k, term in zip(after.cohort, terms, strict=True):
                    term |= mine.retrain(number, k)
        for row, k in enumerate(after.cohort):
            gaps.states("parameters", after.mine.state, mine.nets[k], k)
            for n, value in mine.projections[k].named_parameters():
                if mine.dual:
                    found = after.mine.state[f"own.projection.{n}"][k]
                    gaps.add("parameters", found, value)
            assert terms[row].keys() == {n for n in after.terms}
            for name, value in terms[row].items():
                gaps.add("terms", after.terms[name][row], value)
            for c, (own, count) in (sent[row] if now else {}).items():
                up = after.up.mixtures
                assert int(up.count[row, c]) == count
                for i, (m, v, w) in enumerate(own):
                    gaps.add("mixtures", up.mean[row, c, i], m)
                    gaps.add("mixtures", up.std[row, c, i], v.sqrt())
                    gaps.add("mixtures", up.weight[row, c, i], w)
        kept = after.server.mixtures
        assert kept.known.nonzero().flatten().tolist() == sorted(mine.global_)
        for c, components in mine.global_.items():
            assert int(kept.present[c].sum()) == len(components)
            for i, (m, v, w) in enumerate(components):
                gaps.add("server", kept.mean[c, i], m)
                gaps.add("server", kept.std[c, i], v.sqrt())
                gaps.add("server", kept.weight[c, i], w)
        exact = after.server._replace(simplex=after.server.simplex.double())
        right = fed.evaluate(after._replace(server=exact))[
            f"accuracy/{rule.model}/{rule.readout}"
        ]
        gaps.add("predictions", right, [mine.right(k) for k in range(3)])
    received = sum(len(c) for c in mine.global_.values())
    assert not switches.get("pseudo", True) or 0 < merged < received + merged
    gaps.told("GFPL", str(switches or "paper"))
