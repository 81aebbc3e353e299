"""What a run tells round by round: plain numbers, for a tracker or a table."""

from collections.abc import Callable, Iterator
from math import isnan

from fedlib.core.method import Round
from fedlib.core.protos import Protos, gaps
from fedlib.runs.results import Result

FAR = 10  # times as far from its prototype as prototypes are from one another
Watch = Callable[[int, dict[str, float]], None]  # a round, from 1, and its numbers


def runs_away(after: Round) -> str:
    """Return in words that a generator has left the prototypes; empty if not.

    It has where what it makes is on average ``FAR`` times as far from its class's
    prototype (``distance``, which merging reports) as a prototype is from the nearest
    other one. FedPA's can: its adversarial term has no bound.
    """
    known = getattr(after.server, "protos", None)
    if not isinstance(known, Protos) or not after.watched.keys() >= {
        "distance",
        "norm",
    }:
        return ""
    apart = gaps(known)[known.known].mean()
    far = float(after.watched["distance"].mean())
    if not apart > 0 or far <= FAR * apart:
        return ""
    return (
        f"the generator runs away: in round {after.number} what it makes is {far:.3g} "
        f"from its class's prototype, and prototypes are {float(apart):.3g} apart"
    )


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
