"""What FedPA's tables run the methods with; FedHKD's defaults are its weights."""

from fedlib.papers.protocol import Presets

PRESETS: Presets = {
    # Section V-A3: learning rates; V-A2: hidden 256 everywhere.
    "fedpa": {
        "mnist": {"generator_lr": 3e-4},
        "fashion": {"generator_lr": 3e-4},
        "emnist": {"generator_lr": 1e-4},
        "celeba": {"generator_lr": 3e-4},
    },
    "fedprox": {"*": {"prox_weight": 1.0}},
    # FedGen's widths are its program's, as in the released one; V-A2 is FedPA's
    "fedgen": {
        "*": {"latent_weight": 0.0},
        "emnist": {"generator_lr": 1e-4},
        "celeba": {"hidden": 128},
    },
}
# What the released program has otherwise on a data set, with ``variant="reference"``.
RELEASED: Presets = {"fedpa": {"celeba": {"hidden": 128}}}
