"""Where the numbers of the paper's tables stand in what its notebooks write."""

from fedlib.papers.source import Source

SOURCES = (
    Source("gfpl", "table1", "mean"),
    # Printed once for all numbers of ways. Of parameters it is the uploads of all
    # clients in a round at four ways, but for GFPL, whose numbers fit no convention.
    *(
        Source(
            "gfpl", "table1", column, "share", "table1_communication", theirs, ours
        )._replace(where={"ways": 4})
        for column, theirs, ours in (
            ("rounds", "paper_rounds", "best_round"),
            ("parameters_k", "paper_k", "D"),
        )
    ),
    Source(
        "gfpl",
        "table2",
        "mean",
        labels={
            "none": "without DCS and PFG",
            "pseudo": "without DCS",
            "dual_classifier": "without PFG",
            "dual_classifier+pseudo": "gfpl",
        },
    ),
    Source("gfpl", "table3", "value", "exact", ours="ours"),
)
