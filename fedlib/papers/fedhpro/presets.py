"""What FedHPro's tables run the methods with.

FedHPro has one setting for all data sets, its defaults. Those of FedTGP, FedGMKD and
FedRCL are its table's, as released; FedSA's weights are not known.
"""

from fedlib.papers.protocol import Presets

PRESETS: Presets = {
    "fedprox": {"*": {"prox_weight": 0.01}},
    "fedproto": {"*": {"weighting": "uniform", "share_model": True}},
    "moon": {"*": {"contrast_weight": 5.0}},
}
