"""What FedPG's tables run the methods with; its own defaults are Section 5.1's.

The released configurations have other numbers of images and weights: ``fedpg``'s
variants ``"notebook"`` and ``"script"``.
"""

from fedlib.papers.protocol import Presets

# its clients learn at 0.1, ten times FedGen's official rate: see FedGen's Readings
_FEDGEN = {"generator_weight": 1.0, "latent_weight": 1.0}
_CIFAR = {"noise_size": 64, "hidden": 512}

PRESETS: Presets = {
    "fedprox": {"*": {"prox_weight": 0.01}},
    "fedgen": {
        "*": _FEDGEN,
        "cifar10": _CIFAR,
        "cifar10_fs": _CIFAR,
        "cifar100": _CIFAR,
    },
    "vhl": {
        "cifar10": {"virtual_per_class": 5000},
        "cifar10_fs": {"virtual_per_class": 5000},
        "cifar100": {
            "virtual_per_class": 500,
            "style_size": 256,
            "class_spread": 0.5,
            "sample_spread": 0.2,
        },
    },
    "ccvr": {"cifar100": {"samples_per_class": 500}},
}
