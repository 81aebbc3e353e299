"""Where the numbers of the paper's tables stand in what its notebooks write."""

from fedlib.papers.source import Source

SOURCES = (
    *(
        Source("fedmps", "table2", column, "exact", ours="ours")._replace(
            there={"setting": column}
        )
        for column in ("classes", "block", "shots", "test_shots", "spread")
    ),
    Source("fedmps", "table3", "mean"),
    Source("fedmps", "table4", "mean"),
    Source("fedmps", "table5", "parameters", "exact", ours="counted"),
    Source("fedmps", "table6", "mean"),
    Source("fedmps", "table7", "mean"),
)
