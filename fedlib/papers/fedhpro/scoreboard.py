"""What makes the numbers of the paper's tables."""

from fedlib.papers.source import Accuracies, Origin, Source, variants

HYPER = {"hyper": "{method} + HP"}  # ``{method}`` is the printed name
# The slides do not say which of their parts hyper-prototypes replace.
UNTOLD = frozenset({("fedgmkd", "hyper"), ("fedsa", "hyper")})
SOURCES: tuple[Origin, ...] = (
    Accuracies("fedhpro", "table1"),
    Accuracies("fedhpro", "table2"),
    Accuracies(
        "fedhpro",
        "table3",
        runs={
            ("fedproto", "hyper"): "fedhpro:contrast_weight:0:hpal:mse",
            ("fedtgp", "hyper"): "fedhpro:contrast_weight:0:hpal:mse",
        },
    ),
    Source(
        "fedhpro",
        "table3",
        "gain",
        "gain",
        theirs="paper_gain",
        ours="gain",
        labels=HYPER,
        missing=UNTOLD,
    ),
    Accuracies(
        "fedhpro",
        "table5",
        runs=variants(
            "fedhpro",
            {
                "none": "fedhpro:contrast_weight:0:align_weight:0",
                "contrast": "fedhpro:align_weight:0",
                "align": "fedhpro:contrast_weight:0",
                "contrast+align": "fedhpro",
            },
        ),
    ),
    Accuracies(
        "fedhpro",
        "table6",
        runs=variants(
            "fedhpro",
            {
                "hyper": "fedhpro",
                "prototypes_in_contrast": "fedhpro:contrast_with:prototypes",
                "prototypes_in_align": "fedhpro:align_with:prototypes",
                "prototypes_in_both": "fedhpro:contrast_with:prototypes"
                ":align_with:prototypes",
            },
        ),
    ),
    Source("fedhpro", "table6", "gain", "gain", theirs="paper_change", ours="change"),
)
