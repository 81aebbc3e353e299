"""What GFPL's tables run the methods with; of FedFA and FeSEM they give no setting."""

from fedlib.papers.protocol import Presets

_PERSONAL = {"personal": "linear", "weighting": "uniform"}

PRESETS: Presets = {
    # Section 5.1 and Table 3; the printed 50/128/80/80 has 80 and 128 swapped, since
    # CIFAR-100 needs at least 100.
    "gfpl": {
        "mnist": {"projection_size": 50},
        "femnist": {"projection_size": 80},
        "cifar10": {"projection_size": 128},
        "cifar100": {"projection_size": 128},
    },
    # all clients start from one model, so that its ablation equals Local
    "local": {"*": {"common_init": True}},
    "fedavg": {"*": {"weighting": "uniform"}},
    "fedprox": {"*": {"weighting": "uniform", "prox_weight": 0.01}},
    "fedper": {"*": _PERSONAL},
    "fedrep": {"*": _PERSONAL},
    "fedproto": {"*": {"weighting": "uniform"}, "cifar10": {"proto_weight": 0.1}},
}
