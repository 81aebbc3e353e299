"""What FedHPro's tables run the methods with.

The slides give none of it. FedHPro has one setting for all data sets, its defaults;
FedProx's weight is an option of its released code. The others have those of their own
programs, FedSA's weights are ours. All train at FedHPro's released rate (0.1 on CIFAR,
plain SGD), which of their programs' settings only FedRCL's have, and weights belong to
a rate:

- FedTGP's server steps at the clients' rate, as in its program; these clients' steps
  are ten times those of its released command, or have momentum 0.9, so that its weight
  of 10 is 1 here (on the digits, ours, 10 diverges).
- FedProto's 1 is its program's, for models that stay at home under SGD 0.01 with
  momentum 0.5; on CIFAR-10 its authors' command has ``proto_weight=0.1``. Here models
  are shared.
- FedProx's article tunes its weight by data set, from 0.001 to 1.
- MOON's 5 is that of its authors' command for CIFAR-10, which steps at 0.01.
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
