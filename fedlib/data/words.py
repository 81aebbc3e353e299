"""What classes are called, of data sets whose files number them."""

from collections.abc import Sequence

from fedlib.data.types import Dataset, Facts

# Fashion-MNIST's README; NIST numbers digits by themselves.
WORDS = {
    "fashion": (
        *("T-shirt", "trouser", "pullover", "dress", "coat"),
        *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
    ),
}


def class_names(data: Dataset | Facts) -> Sequence[str]:
    """Return a data set's class names in words, for pictures."""
    return WORDS.get(data.name, data.classes)
