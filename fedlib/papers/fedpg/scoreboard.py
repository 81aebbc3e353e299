"""Where the numbers of the paper's tables stand in what its notebooks write."""

from fedlib.papers.source import Source

SOURCES = (
    Source("fedpg", "table1", "mean"),
    Source("fedpg", "table1", "ratio", "share", "table1_speed", ours="at 95 %"),
    Source(
        "fedpg",
        "table2",
        "mean",
        labels={
            "without_anchor": "GT-d",
            "without_proto": "GT-p",
            "without_align": "LT-fa",
            "without_tuning": "LT-ct",
        },
    ),
    Source(
        "fedpg",
        "table3",
        "mean",
        "share",
        labels={"fc": "FedPG+fc", "cnn": "FedPG+cnn"},
    ),
)
