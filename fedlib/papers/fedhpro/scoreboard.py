"""Where the numbers of the paper's tables stand in what its notebooks write."""

from fedlib.papers.source import Source

HYPER = {"hyper": "{method} + HP"}  # ``{method}`` is the printed name
SOURCES = (
    Source("fedhpro", "table1", "mean"),
    Source("fedhpro", "table2", "mean"),
    *(
        Source("fedhpro", "table3", column, theirs=theirs, ours=ours, labels=HYPER)
        for column, theirs, ours in (
            ("mean", "paper", "mean"),
            ("gain", "paper_gain", "gain"),
        )
    ),
    Source("fedhpro", "table5", "mean"),
    Source("fedhpro", "table6", "mean"),
    Source("fedhpro", "table6", "gain", theirs="paper_change", ours="change"),
)
