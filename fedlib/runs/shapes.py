"""What a round costs by its shapes: no data, no run, one image through an empty net.

Rough, and rather low: the clients' training passes alone, without what a server fits,
what a method computes beside its net, and evaluation. FedAvg with small nets takes two
to five times as long, a method with a generator thirty times.
"""

import functools

import torch
from torch.utils.flop_counter import FlopCounterMode

from fedlib.core import nets
from fedlib.data import DATASETS
from fedlib.runs.cost import samples
from fedlib.runs.spec import Spec

PASSES = 3  # forward, and backward to weights and to activations
CLASSES = 10  # of a data set whose number of classes depends on what was sampled
# Operations of one core in a second, the low end of what training reaches: 2e10 to 5e10
# (figures/bench/training.csv).
RATE = 2e10


@functools.cache
def operations(net: str, shape: tuple[int, int, int], classes: int) -> int:
    """Return floating-point operations of one image's way forward through a net.

    Parameters
    ----------
    net : str
        A name of ``nets.NETS``.
    shape : tuple of int
        Channels, height, width.
    classes : int
    """
    built = nets.build(net, shape, classes)
    state = built.init(torch.Generator().manual_seed(0))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        built(state, torch.zeros(1, *shape))
    return counter.get_total_flops()


def seconds_per_round(spec: Spec) -> float | None:
    """Return the seconds that one core trains in a round of a run.

    Returns
    -------
    float or None
        None where the number of training images is known only with the data.
    """
    entry, training = DATASETS[spec.dataset], spec.training
    per_client = samples(spec)
    if per_client is None:
        return None
    classes = entry.classes or CLASSES
    shares = [spec.imbalance ** (-c / max(1, classes - 1)) for c in range(classes)]
    per_client *= sum(shares) / classes  # a long tail, as partitions.long_tail cuts it
    channels, height, width = entry.shape
    side = spec.transform.side if spec.transform else None
    shape = (channels, side or height, side or width)
    images = per_client * training.local_epochs
    if training.local_steps is not None:
        images = min(training.batch_size, per_client) * training.local_steps
    cohort = max(1.0, spec.participation * spec.clients)
    of_one = operations(spec.net, shape, classes)
    return cohort * images * PASSES * of_one / RATE
