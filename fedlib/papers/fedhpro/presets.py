"""What FedHPro's tables run the methods with.

FedHPro has one setting for all data sets, its defaults. Those of FedGMKD and FedRCL are
its table's, as released; FedSA's weights are not known. FedTGP's server steps at the
clients' rate, as in its program; these clients' steps are ten times those of its
released command, or have momentum 0.9, so that its weight of 10 is 1 here (on the
digits, ours, 10 diverges).
"""

from fedlib.papers.protocol import Presets

PRESETS: Presets = {
    "fedprox": {"*": {"prox_weight": 0.01}},
    "fedproto": {"*": {"weighting": "uniform", "share_model": True}},
    "moon": {"*": {"contrast_weight": 5.0}},
    "fedtgp": {
        "*": {"server_learning_rate": 0.1},
        "digits_domains": {"server_learning_rate": 0.01},
        "office_caltech": {"server_learning_rate": 0.01},
        "digits": {"server_learning_rate": 0.02},
    },
}
