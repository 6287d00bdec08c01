"""How much of everything."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """The sizes of one run of the benchmark."""

    waiting: int = 200_000  # jobs that wait when a drain begins
    few: int = 10_000  # the same for drain_10k
    many: int = 1_000_000  # and for drain_1m, and for the admin
    dead: int = 200_000  # in the morgue, for the admin
    calls: int = 20_000  # of enqueue
    bulk: int = 200_000  # jobs in one call of enqueue_many
    singles: int = 500  # jobs whose pick-up is timed
    backlog: int = 1_000  # jobs in front of them, for the busy worker
    idle_seconds: float = 10.0
    rest_seconds: float = 0.5  # for a worker to come to rest before its idleness is measured
    hold_seconds: float = 3.0  # the job that takes hostages
    hostages: int = 200
    rss_jobs: int = 50_000  # jobs before the first look at the memory, and between two pieces
    rss_pieces: int = 20  # of which the second look is after this many
    looks: int = 9  # at each page of the admin, of which the median counts


QUICK = Sizes(
    waiting=2_000,
    few=500,
    many=4_000,
    dead=1_000,
    calls=400,
    bulk=2_000,
    singles=40,
    backlog=200,
    idle_seconds=0.5,
    rest_seconds=0.1,
    hold_seconds=0.5,
    hostages=50,
    rss_jobs=1_000,
    rss_pieces=3,
    looks=1,
)
