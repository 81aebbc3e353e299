"""What makes the numbers of the paper's tables; Table II are settings, and a test's."""

from fedlib.papers.source import Accuracies, Origin, Source, variants

SOURCES: tuple[Origin, ...] = (
    Accuracies("fedmps", "table3"),
    Accuracies("fedmps", "table4", settings={"imagenet": {"embedding": "unit"}}),
    Source("fedmps", "table5", "parameters", "exact", ours="counted"),
    Accuracies("fedmps", "table6", sd_over="clients"),
    Accuracies(
        "fedmps",
        "table7",
        sd_over="clients",
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
