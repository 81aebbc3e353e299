"""Where the numbers of the paper's tables stand in what its notebooks write."""

from fedlib.papers.source import Source

SOURCES = (
    Source("fedpa", "table2", "mean"),
    Source("fedpa", "table3", "mean"),
    Source("fedpa", "table4", "mean"),
    *(
        Source(
            "fedpa", "table5", "mean", "share", theirs=f"paper_{which}", ours=which
        )._replace(where={"distance": which})
        for which in ("intra", "inter")
    ),
)
