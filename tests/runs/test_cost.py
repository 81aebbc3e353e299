"""What a run costs: from its settings, and from what others have taken."""

from fedlib import papers
from fedlib.runs.cost import STEP, Costs, guess, kind, likeness
from fedlib.runs.spec import Spec


def local(**changes) -> Spec:
    return papers.fedmps("digits", "local", **{"rounds": 10, "seed": 1} | changes)


def test_the_nearest_runs_tell_the_cost():
    """Of a kind, else of the method on this data, the method, the net, else all."""
    todo = local(seed=9)
    ladder = [
        papers.fedhpro("digits", "fedavg", rounds=10),  # all
        papers.fedmps("digits", "fedavg", rounds=10),  # net
        papers.fedhpro("digits", "local", rounds=10),  # method
        local(clients=5),  # method on this data and net
        local(seed=2),  # kind
    ]
    steps = (1.0, 2.0, 3.0, 4.0, 5.0)
    costs = Costs()
    assert not costs
    assert costs.expected(likeness(todo)) == STEP * todo.rounds * guess(todo)
    found = []
    for spec, step in zip(ladder, steps, strict=True):
        costs.learn(spec, step * spec.rounds * guess(spec))
        found.append(costs.expected(likeness(todo)) / (todo.rounds * guess(todo)))
    assert costs
    assert found[0] == 1
    assert found[-1] == 5
    assert found == sorted(found)
    assert len(set(found)) == 5


def test_a_guess_grows_with_steps_pixels_and_clients():
    small = guess(local())
    assert guess(local(training={"local_epochs": 2})) == 2 * small
    assert guess(local(training={"local_steps": 1})) < small
    assert guess(local(clients=40)) > small
    assert guess(papers.fedmps("noise", "local")) > small
    assert guess(papers.fedmps("imagenet", "local")) > 10 * small
    assert guess(papers.fedpg("digits", "fedpg", clients=1)) > small


def test_a_kind_ignores_seed_length_and_real_numbers():
    assert kind(local(seed=5, rounds=3, eval_every=3)) == kind(local())
    assert kind(local(training={"learning_rate": 0.5})) == kind(local())
    assert kind(local(participation=0.5)) != kind(local())
    assert kind(local(clients=3)) != kind(local())
