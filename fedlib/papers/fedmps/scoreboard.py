"""What makes the numbers of the paper's tables; Table II are settings, and a test's."""

from fedlib.papers.source import Accuracies, Origin, Source, variants

# Table VI is of one seed, as the text below it says, and Table VII's last row is Table
# VI's. The released program's seed draws the clients of Table V and Fig. 7: 59
# prototypes in all, four classes at the first client.
SEED = 1234

SOURCES: tuple[Origin, ...] = (
    Accuracies("fedmps", "table3"),
    Accuracies("fedmps", "table4", settings={"imagenet": {"embedding": "unit"}}),
    Source("fedmps", "table5", "parameters", "exact", ours="counted"),
    Accuracies("fedmps", "table6", sd_over="clients", seed=SEED),
    Accuracies(
        "fedmps",
        "table7",
        sd_over="clients",
        seed=SEED,
        runs=variants(
            "fedmps",
            {
                "none": "fedmps:low_weight:0:high_weight:0:soft_weight:0",
                "low": "fedmps:high_weight:0:soft_weight:0",
                "high": "fedmps:low_weight:0:soft_weight:0",
                "soft": "fedmps:low_weight:0:high_weight:0",
                "low+high": "fedmps:soft_weight:0",
                "low+high+soft": "fedmps",
            },
        ),
    ),
)
