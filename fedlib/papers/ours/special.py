"""The runs of our artefacts that are not a paper's grid."""

from fedlib.papers.ours import leaderboard, min_counts

SPECIAL = {
    "learn/leaderboard": leaderboard.specs,
    "learn/min_count": min_counts.specs,
}
