"""Every figure by name: what it is, what yields it, and what it has to reach."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from django_emq.registry import AnyTask

from . import pages, producers, waits
from .drains import Figures, ceiling, drain
from .sizes import Sizes
from .tasks import anoop, answer, noop


@dataclass(frozen=True)
class Figure:
    """One line of the table.

    :ivar of: the figure that the bound is a multiple of; without one it is a number itself.
    :ivar room: the bound holds only where that other drain leaves room on the server's core.
    :ivar redis_at_most: the bound on a server that is not Valkey, where that is another one.
    """

    key: str
    what: str
    unit: str
    at_least: float | None = None
    at_most: float | None = None
    of: str = ""
    redis_at_most: float | None = None
    room: bool = False


PAGES = {
    "queues": "admin: all queues",
    "pending": "admin: a queue, the first of 1,000,000 pending jobs",
    "deep": "admin: the same from the middle",
    "dead": "admin: a queue, the newest of 200,000 dead jobs",
    "filter": "admin: those with one error",
    "job": "admin: a job",
    "confirm": "admin: the question before 200,000 are requeued",
    "morgue": "admin: morgue",
    "workers": "admin: workers",
    "server": "admin: server",
}
FIGURES = (
    Figure("ceiling", "bare loop: claim and complete 50 at once, no job run", "jobs/s"),
    Figure("drain_1", "one process", "jobs/s", at_least=1.0, of="ceiling"),
    Figure("drain_2", "two processes", "jobs/s", at_least=1.2, of="drain_1", room=True),
    Figure("drain_threads_8", "one process, 8 threads", "jobs/s", at_least=0.5, of="drain_1"),
    Figure("drain_async", "`async def` tasks", "jobs/s", at_least=0.5, of="drain_1"),
    Figure("drain_results", "results are kept", "jobs/s", at_least=0.6, of="drain_1"),
    Figure(
        "drain_1_everysec", "one process, append-only file", "jobs/s", at_least=0.7, of="drain_1"
    ),
    Figure(
        "drain_2_everysec", "two processes, append-only file", "jobs/s", at_least=0.7, of="drain_2"
    ),
    Figure("drain_trail_off", "one process, TRAIL off", "jobs/s", of="drain_1"),
    Figure("drain_trail_all", "one process, TRAIL all", "jobs/s", of="drain_1"),
    Figure("drain_10k", "one process, 10,000 wait", "jobs/s"),
    Figure("drain_1m", "one process, 1,000,000 wait", "jobs/s", at_least=0.85, of="drain_10k"),
    Figure("enqueue_floor", "bare EVALSHA loop with the same script", "jobs/s"),
    Figure("enqueue_one", "one call a job", "jobs/s", at_least=0.85, of="enqueue_floor"),
    Figure("enqueue_many", "200,000 in one call", "jobs/s", at_least=5.0, of="enqueue_one"),
    Figure("pickup_p50_ms", "idle worker, half of 500 jobs", "ms", at_most=0.35),
    Figure("pickup_p99_ms", "idle worker, 99 of 100 jobs", "ms", at_most=1.5),
    Figure("pickup_floor_p50_ms", "a bare redis-py worker in its place", "ms"),
    Figure("pickup_floor_p99_ms", "a bare redis-py worker in its place", "ms"),
    Figure("pickup_busy_p99_ms", "busy worker, 99 of 100 jobs", "ms"),
    Figure("hostage_ms", "200 jobs behind one of 3 s, two workers", "ms", at_most=300),
    Figure("idle_commands", "of one idle worker in 10 s", "commands", at_most=5),
    Figure("idle_calls", "what it sends, without what its scripts do", "calls"),
    Figure("commands_per_job", "counted by the server, inside scripts too", "commands"),
    Figure("server_us_per_job", "processor time of the server", "µs"),
    Figure(
        "bytes_per_job", "of the server, a waiting job", "bytes", at_most=350, redis_at_most=420
    ),
    Figure("rss_mb", "one worker after 50,000 jobs", "MB"),
    Figure("rss_mb_1m", "one worker after 1,000,000 jobs", "MB"),
    Figure("rss_growth_mb", "the difference", "MB", at_most=3),
    Figure("admin", "slowest page of the admin", "ms", at_most=150),
    Figure("admin_calls", "most round trips of a page, database included", "calls", at_most=25),
    *(Figure(f"admin_{name}_ms", what, "ms") for name, what in PAGES.items()),
)
KEYS = tuple(figure.key for figure in FIGURES)


@dataclass(frozen=True)
class Measure:
    """One piece of work that yields figures."""

    run: Callable[[Sizes], Figures]
    keys: tuple[str, ...]

    @property
    def name(self) -> str:
        """What the progress calls it."""
        return self.keys[0]


def _drain(
    key: str,
    task: AnyTask,
    *options: str,
    waiting: Callable[[Sizes], int] = lambda sizes: sizes.waiting,
    everysec: bool = False,
    cost: tuple[str, ...] = (),
    trail: str = "",
) -> Measure:
    def run(sizes: Sizes) -> Figures:
        figures = ceiling(sizes)
        figures[key], costs = drain(task, waiting(sizes), *options, everysec=everysec, trail=trail)
        # What the server spends on a job is reported for drain_1 alone; the others keep it as
        # `<key>_server_us`, which tells how full the server's core was.
        figures |= {name: costs[name] for name in cost}
        figures[f"{key}_server_us"] = costs["server_us_per_job"]
        return figures

    return Measure(run, (key, *cost, "ceiling"))


MEASURES = (
    _drain("drain_1", noop, cost=("server_us_per_job", "commands_per_job")),
    _drain("drain_2", noop, "--processes", "2"),
    _drain("drain_threads_8", noop, "--threads", "8"),
    _drain("drain_async", anoop),
    _drain("drain_results", answer),
    _drain("drain_1_everysec", noop, everysec=True),
    _drain("drain_2_everysec", noop, "--processes", "2", everysec=True),
    _drain("drain_trail_off", noop, trail="off"),
    _drain("drain_trail_all", noop, trail="all"),
    _drain("drain_10k", noop, waiting=lambda sizes: sizes.few),
    _drain("drain_1m", noop, waiting=lambda sizes: sizes.many),
    Measure(producers.one_by_one, ("enqueue_one", "enqueue_floor")),
    Measure(producers.many, ("enqueue_many",)),
    Measure(
        waits.pickup,
        tuple(f"pickup_{name}_ms" for name in ("p50", "p99", "floor_p50", "floor_p99")),
    ),
    Measure(waits.pickup_busy, ("pickup_busy_p99_ms",)),
    Measure(waits.hostage, ("hostage_ms",)),
    Measure(waits.idle, ("idle_commands", "idle_calls")),
    Measure(producers.bytes_per_job, ("bytes_per_job",)),
    Measure(waits.memory, ("rss_mb", "rss_mb_1m", "rss_growth_mb")),
    Measure(pages.admin, ("admin", "admin_calls", *(f"admin_{name}_ms" for name in PAGES))),
)


def chosen(names: Iterable[str]) -> list[Measure]:
    """The fewest measures that yield these figures, or all for no name. Raises KeyError."""
    found: dict[str, Measure] = {}
    for name in names:
        measure = next((m for m in MEASURES if name in m.keys), None)
        if measure is None:
            raise KeyError(name)
        found[measure.name] = measure
    return list(found.values()) or list(MEASURES)
