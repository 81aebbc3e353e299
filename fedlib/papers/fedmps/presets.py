"""What FedMPS's tables run the methods with."""

from fedlib.papers.protocol import Presets

_FEDAVG = {"weighting": "uniform", "common_init": False}
_PROX = {"flowers": 0.01, "defungi": 0.1, "realwaste": 0.001, "femnist": 0.1}
_MOON = {"flowers": 0.1, "defungi": 0.1, "realwaste": 0.1, "cifar10": 5.0}

PRESETS: Presets = {
    # Section IV-B: alpha and mu tuned per data set; lambda = beta = 1.
    "fedmps": {
        "flowers": {"low_weight": 1.0, "soft_weight": 1.0},
        "defungi": {"low_weight": 1.0, "soft_weight": 0.01},
        "realwaste": {"low_weight": 1.0, "soft_weight": 0.01},
        "cifar10": {"low_weight": 0.2, "soft_weight": 5.0},
        "fashion": {"low_weight": 1.0, "soft_weight": 1.0},
        "femnist": {"low_weight": 1.0, "soft_weight": 10.0},
    },
    "fedavg": {"*": _FEDAVG},
    "fedprox": {"*": _FEDAVG | {"prox_weight": 0.01}}
    | {dataset: {"prox_weight": weight} for dataset, weight in _PROX.items()},
    "fedproto": {"*": {"weighting": "uniform"}},
    "moon": {"*": {"common_init": False, "contrast_weight": 1.0}}
    | {dataset: {"contrast_weight": weight} for dataset, weight in _MOON.items()},
    "fedntd": {"*": _FEDAVG},
    "fedgkd": {"*": _FEDAVG},
    # its code averages this baseline's models by samples, unlike FedAvg's
    "fedproc": {"*": {"common_init": False}},
}

_LONGER = ("realwaste", "cifar10", "fashion")
_FASTER = ("realwaste", "cifar10", "fashion", "femnist")
TRAINING: Presets = {
    "fedntd": {dataset: {"local_epochs": 5} for dataset in _LONGER},
    "fedgkd": {dataset: {"learning_rate": 0.05} for dataset in _FASTER},
}
