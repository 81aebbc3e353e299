"""What a run tells round by round: plain numbers, for a tracker or a table."""

from collections.abc import Callable, Iterator
from math import isnan

from fedlib.runs.results import Result

Watch = Callable[[int, dict[str, float]], None]  # a round, from 1, and its numbers


def by_round(result: Result, first: int = 1) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield each round of a log with its numbers.

    Names are ``term/...``, loss terms averaged over the cohort; ``server/...``, what
    merging reports; ``sent/up`` and ``sent/down``, how many numbers travelled, over all
    clients; ``accuracy/model/rule``, as a fraction, averaged over the clients with test
    samples. What a round does not have is left out.

    Parameters
    ----------
    first : int
        The number of the log's first round, where it is the end of a longer one.
    """
    numbers: list[dict[str, float]] = [{} for _ in result.log.cohort]
    for group, frame in (("term", result.terms()), ("server", result.watched())):
        for name, values in frame.items():
            for row, value in zip(numbers, values.tolist(), strict=True):
                row[f"{group}/{name}"] = value
    for name, sizes in result.log.sent.items():
        direction = f"sent/{name.partition('/')[0]}"
        for row, size in zip(numbers, sizes.sum(1).tolist(), strict=True):
            row[direction] = row.get(direction, 0) + size
    for model, rule in result.readouts:
        means = result.accuracy(model, rule).nanmean(1).tolist()
        for number, mean in zip(result.evaluated, means, strict=True):
            numbers[number - first][f"accuracy/{model}/{rule}"] = mean
    for number, row in enumerate(numbers, first):
        yield number, {name: value for name, value in row.items() if not isnan(value)}
