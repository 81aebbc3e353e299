"""What makes the numbers of the paper's tables."""

from fedlib.papers.source import Accuracies, Origin, Source, variants

SOURCES: tuple[Origin, ...] = (
    Accuracies("fedpg", "table1", "last"),
    Source("fedpg", "table1", "ratio", "share", "table1_speed", ours="at 95 %"),
    Accuracies(
        "fedpg",
        "table2",
        "last",
        runs=variants(
            "fedpg",
            {
                "without_anchor": "fedpg:anchor_weight:0",
                "without_proto": "fedpg:proto_weight:0",
                "without_align": "fedpg:align_weight:0",
                "without_tuning": "fedpg:tuning_weight:0",
            },
        ),
    ),
    Source(
        "fedpg",
        "table3",
        "mean",
        "share",
        labels={"fc": "FedPG+fc", "cnn": "FedPG+cnn"},
    ),
)
