"""Milliseconds per client-step: fedlib's cohort training against a plain PyTorch loop.

Workload W1: few-shot Fashion-MNIST (noise of its shape when the data are absent), 20
clients, 3 classes x 100 images each, batch 8, one epoch without the last short batch,
SGD 0.01 with momentum 0.5, one thread, a convolutional net of 21,840 parameters. Both
loops train the same weights on the same batches and are compared at the end; they run
alternately, and medians are printed.

    python benchmarks/client_steps.py [--passes 5] [--json FILE]
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.core import nets, protos
from fedlib.core.local import Cohort, Losses, Task, train_local
from fedlib.core.losses import cross_entropy
from fedlib.core.net import Net, State
from fedlib.core.rng import generator
from fedlib.core.shards import Shards
from fedlib.core.training import Training
from fedlib.data import DataError, load

CLIENTS, CLASSES, SHOTS, BATCH = 20, 3, 100, 8
TRAINING = Training(learning_rate=0.01, momentum=0.5, batch_size=BATCH)


def random_for(purpose: str, client: int) -> torch.Generator:
    """Return the generator of a client, the same for both loops."""
    return generator(0, purpose, 1, client)


def workload() -> tuple[Shards, str]:
    """Return W1's data, normalised, and a word on where they come from."""
    try:
        data = load("fashion")
        images, labels, source = data.train_x, data.train_y, data.title
    except DataError:
        source = "noise of Fashion-MNIST's shape"
        draw = generator(0, "noise")
        images = torch.randint(0, 256, (60_000, 1, 28, 28), generator=draw).byte()
        labels = torch.arange(60_000) % 10
    x, y, index = [], [], []
    for client in range(CLIENTS):
        start = client * CLASSES * SHOTS
        for offset in range(CLASSES):
            wanted = (client + offset) % 10
            found = torch.nonzero(labels == wanted).flatten()
            rows = found[client * SHOTS :][:SHOTS]
            x.append(images[rows])
            y.append(labels[rows])
        index.append(torch.arange(start, start + CLASSES * SHOTS))
    shards = Shards(
        torch.cat(x), torch.cat(y), index, list(range(CLIENTS)), (0.1307,), (0.3081,)
    )
    return shards._replace(x=shards.inputs(torch.arange(len(shards.x)))), source


class Plain(nn.Module):
    """The same net in ordinary PyTorch layers."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.fc1, self.fc2 = nn.Linear(320, 50), nn.Linear(50, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the normalised embedding and logits."""
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        z = F.normalize(F.relu(self.fc1(x.flatten(1))))
        return z, self.fc2(z)


def plain_round(
    state: State, shards: Shards, known: protos.Protos | None
) -> list[Plain]:
    """Train the clients one after another with an ordinary loop."""
    trained = []
    for client in range(CLIENTS):
        model = Plain()
        for parameter, value in zip(model.parameters(), state.values(), strict=True):
            parameter.data.copy_(value[client])
        optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
        mine = shards.index[client]
        order = mine[torch.randperm(len(mine), generator=random_for("batches", client))]
        for step in range(len(order) // BATCH):
            rows = order[step * BATCH : (step + 1) * BATCH]
            y = shards.y[rows]
            z, logits = model(shards.x[rows])
            loss = F.cross_entropy(logits, y)
            if known is not None:
                loss = loss + F.mse_loss(z, known.mean[y])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        trained.append(model)
    return trained


def cohort_round(
    net: Net, state: State, shards: Shards, known: protos.Protos | None
) -> State:
    """Train the clients side by side with the library's loop."""

    def loss(weights, batch):
        out = net(weights, batch.x, train=True)
        total = cross_entropy(out.logits, batch.y)
        if known is None:
            return Losses(total, {}, {})
        return Losses(
            total + protos.pull(out.high, batch.y, known), {}, {"high": out.high}
        )

    cohort = Cohort(state, shards)
    return train_local(cohort, Task(loss), TRAINING, net, random_for).state


def compare(
    name: str, shards: Shards, known: protos.Protos | None, passes: int
) -> dict:
    """Time both loops alternately and return milliseconds per client-step."""
    net = nets.build("mnist_cnn_plain", (1, 28, 28), 10)
    drawn = [net.init(generator(0, "init", i)) for i in range(CLIENTS)]
    state = {k: torch.stack([s[k] for s in drawn]) for k in drawn[0]}
    steps = CLIENTS * (CLASSES * SHOTS // BATCH)
    times: dict[str, list[float]] = {"plain": [], "cohort": []}
    for _ in range(passes + 1):
        begun = time.perf_counter()
        models = plain_round(state, shards, known)
        middle = time.perf_counter()
        stacked = cohort_round(net, state, shards, known)
        times["plain"].append(middle - begun)
        times["cohort"].append(time.perf_counter() - middle)
    gap = max(
        float((p.detach() - v[i]).abs().max())
        for i, model in enumerate(models)
        for p, v in zip(model.parameters(), stacked.values(), strict=True)
    )
    median = {k: statistics.median(v[1:]) * 1e3 / steps for k, v in times.items()}
    return {
        "workload": name,
        "client_steps": steps,
        "plain_ms": round(median["plain"], 3),
        "cohort_ms": round(median["cohort"], 3),
        "ratio": round(median["plain"] / median["cohort"], 2),
        "largest_parameter_gap": gap,
    }


def main() -> None:
    """Print the comparison for FedAvg's and FedProto's local loss."""
    options = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    options.add_argument("--passes", type=int, default=5)
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    shards, source = workload()
    known = protos.Protos(
        F.normalize(torch.randn(10, 50, generator=generator(0, "protos")).abs()),
        torch.ones(10, dtype=torch.int64),
    )
    rows = [
        compare("FedAvg", shards, None, chosen.passes),
        compare("FedProto", shards, known, chosen.passes),
    ]
    print(f"W1 on {source}, torch {torch.__version__}, one thread")
    for row in rows:
        print(
            "{workload:9s} plain {plain_ms:6.3f} ms, cohort {cohort_ms:6.3f} ms per "
            "client-step, ratio {ratio:.2f}; largest parameter gap "
            "{largest_parameter_gap:.1e}".format(**row)
        )
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
