"""What makes the numbers of the paper's tables."""

from fedlib.papers.source import Accuracies, Origin, Source, variants

# Algorithm 1 takes E = 20 batches, as the released code; Section V-A3 prints epochs
EPOCHS = ("E as epochs", {"local_unit": "epochs"})

SOURCES: tuple[Origin, ...] = (
    Accuracies("fedpa", "table2", sd_over="untold", otherwise=EPOCHS),
    Accuracies("fedpa", "table3", sd_over="untold", otherwise=EPOCHS),
    Accuracies(
        "fedpa",
        "table4",
        sd_over="untold",
        otherwise=EPOCHS,
        runs=variants(
            "fedpa",
            {
                "none": "fedpa:generator_weight:0:proto_weight:0:adversarial_weight:0",
                "prototype": "fedpa:generator_weight:0:adversarial_weight:0",
                "generator": "fedpa:proto_weight:0:adversarial_weight:0",
                "adversarial+generator": "fedpa:proto_weight:0",
                "generator+prototype": "fedpa:adversarial_weight:0",
                "adversarial+generator+prototype": "fedpa",
            },
        ),
    ),
    *(
        Source(
            "fedpa", "table5", "mean", "share", theirs=f"paper_{which}", ours=which
        )._replace(where={"distance": which})
        for which in ("intra", "inter")
    ),
)
