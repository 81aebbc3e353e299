"""What of a setting's budget a run cuts, and whether it is a run of that setting."""

from typing import Any

from fedlib.runs.spec import Spec

# What a run may have of its own: how it was drawn, and when one looked.
FREE = {"seed", "partition_seed", "eval_every", "all_rules_every"}
COUNTED = ("steps", "epochs")  # how hyper-parameters end that say how long


def lengths(spec: Spec) -> dict[str, int]:
    """Return how long a run trains, by names in words.

    Rounds, local epochs or steps, and of its method whatever counts steps or epochs,
    such as ``generator steps``.
    """
    training = spec.training
    local = {"local epochs": training.local_epochs}
    if training.local_steps is not None:
        local = {"local steps": training.local_steps}
    return {"rounds": spec.rounds, **local, **_own_lengths(spec)}


def _own_lengths(spec: Spec) -> dict[str, int]:
    return {
        name.replace("_", " "): value
        for name, value in spec.hp.items()
        if name.endswith(COUNTED) and isinstance(value, int)
    }


def shorter(ours: dict[str, int], full: dict[str, int]) -> list[str]:
    """Return in words what is less in one of two ``lengths``: ``3 of 200 rounds``."""
    both = [name for name in ours if name in full]
    return [f"{ours[n]} of {full[n]} {n}" for n in both if ours[n] < full[n]]


def cut(run: Spec, full: Spec) -> list[str] | None:
    """Return in words what of a setting's budget a run cuts; None for another setting.

    Nothing is cut where the run is as long as the setting, or has more rounds. Another
    net counts as a cut; draws (``FREE``) are no setting. All else has to be the same:
    data, partition, method with every switch, training, and what is tested on what.
    """
    ours, theirs = lengths(run), lengths(full)
    longer = [n for n in ours if n != "rounds" and ours[n] > theirs.get(n, 0)]
    if ours.keys() != theirs.keys() or longer or _rest(run) != _rest(full):
        return None
    nets = [f"net {run.net} in place of {full.net}"] if run.net != full.net else []
    return shorter(ours, theirs) + nets


def _rest(spec: Spec) -> dict[str, Any]:
    """Return a run's settings without its budget and its draws."""
    rest = spec.model_dump(mode="json", exclude=FREE | {"rounds", "net"})
    for name in ("local_epochs", "local_steps"):
        del rest["training"][name]
    counted = {name.replace(" ", "_") for name in _own_lengths(spec)}
    rest["hp"] = {n: v for n, v in spec.hp.items() if n not in counted}
    drawn = rest["partition"]
    if "shot_spread" in drawn and drawn["shot_spread"] is None:
        drawn["shot_spread"] = drawn["spread"]  # one for both, until told
    return rest
