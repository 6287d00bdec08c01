"""The read side for people: counts, rows, workers. The only package that reads Redis for them.

Nothing here changes the server, reads a whole set, or is called by a worker while it works. The
number of round trips does not grow with the number of jobs.
"""

from __future__ import annotations

from ._read import SETS
from .books import FACTS, Finding, audit
from .jobs import (
    JobDetail,
    JobPage,
    JobRow,
    Mark,
    among,
    first_row,
    follow,
    job,
    load,
    locate,
    newest,
    page,
    row,
    state,
)
from .morgue import Group, Morgue, morgue
from .queues import (
    Minute,
    QueueStats,
    counts,
    holder,
    is_known,
    last_hour,
    overview,
    parts,
    queues,
    stats,
    together,
    totals,
    unique,
)
from .running import running
from .schedules import Schedule, places, schedules
from .search import Filter, Found, find, walk
from .server import ScriptFact, ServerFacts, Strangers, moved, server, servers, strangers
from .trail import Entry, trail
from .why import Why, explain, span, why, words
from .workers import Worker, held, served, workers

__all__ = [
    "FACTS",
    "SETS",
    "Entry",
    "Filter",
    "Finding",
    "Found",
    "Group",
    "JobDetail",
    "JobPage",
    "JobRow",
    "Mark",
    "Minute",
    "Morgue",
    "QueueStats",
    "Schedule",
    "ScriptFact",
    "ServerFacts",
    "Strangers",
    "Why",
    "Worker",
    "among",
    "audit",
    "counts",
    "explain",
    "find",
    "first_row",
    "follow",
    "held",
    "holder",
    "is_known",
    "job",
    "last_hour",
    "load",
    "locate",
    "morgue",
    "moved",
    "newest",
    "overview",
    "page",
    "parts",
    "places",
    "queues",
    "row",
    "running",
    "schedules",
    "served",
    "server",
    "servers",
    "span",
    "state",
    "stats",
    "strangers",
    "together",
    "totals",
    "trail",
    "unique",
    "walk",
    "why",
    "words",
    "workers",
]
