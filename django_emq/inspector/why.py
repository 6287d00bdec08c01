"""Why a job is where it is, and why a settlement of it was refused: in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ..connections import Client
from ._read import instant, number
from .jobs import JobDetail, job
from .trail import Entry
from .workers import Worker, served, workers

HISTORY_MAX = 12  # entries of the trail that are told


@dataclass(frozen=True, slots=True)
class Why:
    """The answer.

    :ivar reasons: why the job does not run now, or what it does: the most telling one first.
    :ivar refusals: why settlements of it were refused, the newest first.
    :ivar history: what the trail says of it, oldest first.
    """

    queue: str
    id: str
    state: str
    reasons: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    history: list[str] = field(default_factory=list)


def why(client: Client, queue: str, job_id: str) -> Why:
    """Say in words why a job is not running, and what became of it; three round trips.

    Raises JobGone when neither row nor trail knows the job.
    """
    return explain(job(client, queue, job_id), workers(client))


def _waiters(detail: JobDetail) -> Iterator[str]:
    count = len(detail.row.fields.get("waiters", "").split())
    if count:
        yield ngettext(
            "%(count)d caller has asked to be told of its end.",
            "%(count)d callers have asked to be told of its end.",
            count,
        ) % {"count": count}


def explain(detail: JobDetail, found: Sequence[Worker]) -> Why:
    """The words for what was read."""
    tell = {
        "pending": _pending,
        "scheduled": _scheduled,
        "active": _active,
        "dead": _dead,
        "done": _done,
    }.get(detail.state, _nowhere)
    trail = detail.trail
    return Why(
        queue=detail.row.queue,
        id=detail.row.id,
        state=detail.state,
        reasons=[*tell(detail, found), *_waiters(detail)],
        refusals=[_refusal(e, trail[at + 1 :]) for at, e in enumerate(trail) if e.yours],
        history=[sentence(entry) for entry in trail[:HISTORY_MAX][::-1]],
    )


def span(seconds: float) -> str:
    """A time span for people: 0.4 s, 98 s, 3 min, 90 min, 2.4 h, 36 h, 5 d.

    A unit is used from its double on, so that nothing is rounded by half; `emq.js` does the same.
    """
    seconds = abs(seconds)
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            value = seconds / unit
            return f"{value:.{1 if value < 9.95 and unit != 60 else 0}f} {name}"
    return f"{seconds / 86400:.0f} d"


def clock(at: datetime | None) -> str:
    """An instant in UTC, to the second."""
    return at.strftime("%Y-%m-%d %H:%M:%S UTC") if at else "?"


# -- why it does not run ----------------------------------------------------------------------


def _pending(detail: JobDetail, found: Sequence[Worker]) -> Iterator[str]:
    yield from _queue_stops(detail, found)
    row = detail.row
    if detail.ahead:
        yield ngettext(
            "It is ready; %(count)d job is before it.",
            "It is ready; %(count)d jobs are before it.",
            detail.ahead,
        ) % {"count": detail.ahead}
    else:
        yield _("It is ready and the next to be claimed.")
    if row.enqueued_at:
        waited = row.now_ms / 1000 - row.enqueued_at.timestamp()
        yield _("It was enqueued %(span)s ago.") % {"span": span(max(waited, 0))}
    yield from _expiry(detail)
    yield from _failures(detail)


def _scheduled(detail: JobDetail, found: Sequence[Worker]) -> Iterator[str]:
    row = detail.row
    if behind := row.fields.get("behind"):
        yield _(
            "It waits behind job %(holder)s, which holds its unique key, until that has ended."
        ) % {"holder": behind}
        return
    left = row.left_s or 0.0
    due = clock(instant(row.score))
    if left > 0:
        yield _("It is due in %(span)s, at %(due)s, by the server's clock.") % {
            "span": span(left),
            "due": due,
        }
    else:
        yield _("It has been due for %(span)s: no worker and no reaper has looked since.") % {
            "span": span(left)
        }
    if row.fields.get("settled") == "retry" and row.error:
        yield _("It waits to be tried again after an error: %(error)s") % {"error": row.error_line}
    elif row.fields.get("settled") == "snooze":
        yield _("Its task has put it off.")
    elif not row.token:
        yield _("It was enqueued for that time.")
    yield from _expiry(detail)
    yield from _failures(detail)
    yield from _queue_stops(detail, found)


def _active(detail: JobDetail, found: Sequence[Worker]) -> Iterator[str]:
    row = detail.row
    left = row.left_s or 0.0
    facts = {"worker": row.worker or "?", "token": row.token, "span": span(left)}
    if left > 0:
        yield (
            _("It is held by %(worker)s with token %(token)d; the lease ends in %(span)s.") % facts
        )
    else:
        yield (
            _(
                "It was held by %(worker)s with token %(token)d, but the lease lapsed %(span)s "
                "ago. The next sweep gives it back."
            )
            % facts
        )
    if row.started_at:
        ran = row.now_ms / 1000 - row.started_at.timestamp()
        yield _("It was claimed %(span)s ago.") % {"span": span(ran)}
    if row.progress:
        yield _("Its task says how far it is: %(progress)s.") % {"progress": row.progress}
    if detail.logs:
        yield _("The last line of its log: %(line)s") % {"line": detail.logs[-1]}
    if not any(worker.holds(row) for worker in found):
        yield _("No worker of this name has given a sign of life lately.")
    if not served(found, row.queue) and left <= 0:
        yield _no_worker(row.queue)


def _dead(detail: JobDetail, found: Sequence[Worker]) -> Iterator[str]:
    row = detail.row
    yield _("It has been in the morgue since %(at)s: %(error)s") % {
        "at": clock(row.ended_at),
        "error": row.error_line or _("no error was noted"),
    }
    yield from _failures(detail)
    yield _("It runs again only when somebody requeues it.")


def _done(detail: JobDetail, found: Sequence[Worker]) -> Iterator[str]:
    row = detail.row
    yield _("It was completed at %(at)s with token %(token)d.") % {
        "at": clock(row.ended_at),
        "token": row.token,
    }
    yield _("Its row and result are kept for another %(span)s.") % {"span": span(row.left_s or 0)}


def _nowhere(detail: JobDetail, found: Sequence[Worker]) -> Iterator[str]:
    last = detail.trail[0] if detail.trail else None
    if last is not None and last.event == "duplicate":
        yield _("It was never there. A duplicate was refused: job %(holder)s holds the key.") % {
            "holder": last.note
        }
    elif last is not None and last.event == "replaced":
        yield _("It is gone: job %(holder)s came in its place.") % {"holder": last.note}
    elif detail.state == "unknown":
        yield _("Its row is there, but it is in no set: no worker will ever find it. Remove it.")
    else:
        yield _("It is no longer there: it was completed, discarded or removed.")


def _queue_stops(detail: JobDetail, found: Sequence[Worker]) -> Iterator[str]:
    """What keeps a whole queue from running."""
    meta, queue = detail.meta, detail.row.queue
    if "paused" in meta:
        since = number(meta["paused"])
        yield _paused(queue, meta, instant(since) if since > 1 else None)
    limit = number(meta.get("concurrency"))
    if limit and detail.running >= limit:
        yield _("Queue '%(queue)s' runs %(running)d jobs at once, and its limit is %(limit)d.") % {
            "queue": queue,
            "running": detail.running,
            "limit": limit,
        }
    listening = served(found, queue)
    if not listening:
        yield _no_worker(queue)
    elif all(worker.state in ("quiet", "stopping") for worker in listening):
        yield _("All workers that serve '%(queue)s' are quiet or stopping: they take no jobs.") % {
            "queue": queue
        }


def _paused(queue: str, meta: dict[str, str], since: datetime | None) -> str:
    facts = {
        "queue": queue,
        "by": meta.get("paused_by") or _("somebody"),
        "at": clock(since),
        "why": meta.get("paused_why", ""),
    }
    if since is None:
        sentence = _("Queue '%(queue)s' is paused by %(by)s.") % facts
    else:
        sentence = _("Queue '%(queue)s' has been paused by %(by)s since %(at)s.") % facts
    return f"{sentence} {facts['why']}".rstrip()


def _no_worker(queue: str) -> str:
    return _("No worker serves '%(queue)s'. Start one: manage.py emq_worker %(queue)s") % {
        "queue": queue
    }


def _expiry(detail: JobDetail) -> Iterator[str]:
    expires_at = number(detail.row.fields.get("expires_at"))
    if expires_at > detail.row.now_ms:
        left = (expires_at - detail.row.now_ms) / 1000
        yield _("It is given up if it has not begun in %(span)s.") % {"span": span(left)}
    elif expires_at:
        yield _("Its time is over: it goes to the morgue when it would be claimed.")


def _failures(detail: JobDetail) -> Iterator[str]:
    row = detail.row
    if refused := number(row.fields.get("duplicates")):
        yield ngettext(
            "%(count)d duplicate was refused: this job holds the key.",
            "%(count)d duplicates were refused: this job holds the key.",
            refused,
        ) % {"count": refused}
    if row.failures:
        yield ngettext(
            "It has failed %(count)d time in %(runs)d runs.",
            "It has failed %(count)d times in %(runs)d runs.",
            row.failures,
        ) % {"count": row.failures, "runs": row.token}
    if row.stalls:
        yield ngettext(
            "Its lease was lost %(count)d time.", "Its lease was lost %(count)d times.", row.stalls
        ) % {"count": row.stalls}


# -- the trail in words -----------------------------------------------------------------------


# Each event that a script writes into the trail.
EVENTS = {
    "failed": gettext_lazy("failed with token %(token)s: %(note)s"),
    "died": gettext_lazy("went to the morgue: %(note)s"),
    "buried": gettext_lazy("went to the morgue at its task's own wish: %(note)s"),
    "reaped": gettext_lazy("was taken back: %(note)s"),
    "released": gettext_lazy("was handed back by its worker with token %(token)s"),
    "refused": gettext_lazy(
        "was refused a settlement that came with token %(yours)s, the row has %(token)s: %(note)s"
    ),
    "reprocessed": gettext_lazy("was given another life by %(by)s; its token stays %(token)s"),
    "requeued": gettext_lazy("was requeued by %(by)s; its token is now %(token)s"),
    "cancelled": gettext_lazy("was cancelled by %(by)s; its token is now %(token)s"),
    "removed": gettext_lazy("was removed by %(by)s"),
    "duplicate": gettext_lazy("was refused as a duplicate: job %(note)s holds the key"),
    "replaced": gettext_lazy("was replaced by job %(note)s, which has the same unique key"),
    "mended": gettext_lazy("was mended by emq_fsck: %(note)s"),
    "updated": gettext_lazy("got another payload from %(by)s"),
    "drained": gettext_lazy("%(count)s jobs of '%(note)s' were removed by %(by)s"),
    "paused": gettext_lazy("the queue was paused by %(by)s. %(note)s"),
    "resumed": gettext_lazy("the queue was resumed by %(by)s"),
    "switched_off": gettext_lazy("the schedule '%(note)s' was switched off by %(by)s"),
    "switched_on": gettext_lazy("the schedule '%(note)s' was switched on by %(by)s"),
    "admitted": gettext_lazy("was enqueued: %(note)s"),
    "claimed": gettext_lazy("was claimed by %(note)s with token %(token)s"),
    "completed": gettext_lazy("was completed with token %(token)s"),
}


def sentence(entry: Entry) -> str:
    """One entry of the trail, with its time."""
    return f"{clock(entry.at)}: {words(entry)}."


def words(entry: Entry) -> str:
    """What one entry of the trail says."""
    facts = {
        "token": entry.token or "?",
        "yours": entry.yours or "?",
        "by": entry.by or _("somebody"),
        "note": entry.note,
        "count": entry.count,
    }
    pattern = EVENTS.get(entry.event)
    told = str(pattern) % facts if pattern else f"{entry.event} {entry.note}"
    return told.rstrip(" .:")


def _refusal(entry: Entry, earlier: Sequence[Entry]) -> str:
    """A refused settlement, and what had happened to the token that it carried."""
    told = [sentence(entry)]
    for one in earlier:
        if one.event in _TAKES_AWAY and number(one.token) >= number(entry.yours):
            told.append(_("Before that, at %(what)s") % {"what": sentence(one)})
            break
    return " ".join(told)


_TAKES_AWAY = {
    "reaped", "released", "requeued", "cancelled", "removed", "died", "buried", "failed",
}  # fmt: skip
