"""What makes the numbers of the paper's tables; Table 3 are settings, and a test's."""

from fedlib.papers.source import Accuracies, Origin, Source, variants

SOURCES: tuple[Origin, ...] = (
    Accuracies("gfpl", "table1", sd_over="untold"),
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
    Accuracies(
        "gfpl",
        "table2",
        sd_over="untold",
        runs=variants(
            "gfpl",
            {
                "none": "local",
                "pseudo": "gfpl:dual_classifier:false",
                "dual_classifier": "gfpl:pseudo:false",
                "dual_classifier+pseudo": "gfpl",
            },
        ),
        # that a spread of 20 around 100 fits into; CIFAR-100 has no blocks
        settings={"cifar10": {"block": 120}, "femnist": {"block": 112}},
    ),
)
