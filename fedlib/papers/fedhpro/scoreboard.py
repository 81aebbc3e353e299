"""Where the numbers of the paper's tables stand in what its notebooks write."""

from fedlib.papers.source import Source

SOURCES = (
    Source("fedhpro", "table1", "mean"),
    Source("fedhpro", "table2", "mean"),
    Source("fedhpro", "table3", "mean"),
    Source("fedhpro", "table3", "gain", theirs="paper_gain", ours="gain"),
    Source("fedhpro", "table5", "mean"),
    Source("fedhpro", "table6", "mean"),
    Source("fedhpro", "table6", "gain", theirs="paper_change", ours="change"),
)
