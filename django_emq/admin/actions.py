"""The table of what operators can do to jobs, and the bounded way through many of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from .. import inspector, scripts
from ..connections import Client
from ..exceptions import EmqError, JobGone, JobHeld, KeyHeld, NotInState
from ..inspector import SETS, Filter, JobRow, Mark

BATCH = 500  # jobs in one script call
SECONDS = 1.0  # of work in one request
THE_END = Mark(inf, "")
LOST = "lost"  # in place of a set: rows that are in none

Verb = Callable[[Client, str, str, Sequence[str], str], list[Any]]


@dataclass(frozen=True)
class Action:
    """Something that can be done to jobs.

    :ivar labels: the button, by set; an action is there for these sets only.
    :ivar effects: what will happen, by set, for the page that asks.
    :ivar done: what happened, by number.
    """

    name: str
    permission: str
    labels: dict[str, Promise | str]
    effects: dict[str, Promise | str]
    done: Any
    verb: Verb
    deletes: bool = False


def _requeue(client: Client, queue: str, name: str, ids: Sequence[str], by: str) -> list[Any]:
    if name == "dead":
        return list(scripts.reprocess(client, queue, ids, by=by))
    return list(scripts.requeue(client, queue, ids, by=by, only=name))


def _cancel(client: Client, queue: str, name: str, ids: Sequence[str], by: str) -> list[Any]:
    return list(scripts.cancel(client, queue, ids, by=by, only=name))


def _remove(client: Client, queue: str, name: str, ids: Sequence[str], by: str) -> list[Any]:
    only = "none" if name == LOST else name
    return list(scripts.remove(client, queue, ids, by=by, force=name == "active", only=only))


_HELD = _(
    "Their tokens move first: what the workers still do with these jobs is refused, it cannot "
    "race with the next run. Effects that a run has had already stay."
)
_GONE = _("The jobs are deleted with their rows and logs. This cannot be undone.")
ACTIONS = {
    action.name: action
    for action in (
        Action(
            "requeue",
            "requeue_job",
            {"dead": _("Requeue"), "schedule": _("Run now"), "active": _("Take back and requeue")},
            {
                "dead": _(
                    "The jobs become ready at once. Their failures and lost leases are forgotten, "
                    "so they have all attempts again; their tokens go on growing."
                ),
                "schedule": _("The jobs become ready at once, whatever time they wait for."),
                "active": _HELD,
            },
            ngettext_lazy("%(count)d job was requeued.", "%(count)d jobs were requeued.", "count"),
            _requeue,
        ),
        Action(
            "cancel",
            "cancel_job",
            {"pending": _("Cancel"), "schedule": _("Cancel"), "active": _("Cancel")},
            {
                "pending": _("The jobs go to the morgue, from where they can be requeued."),
                "schedule": _("The jobs go to the morgue, from where they can be requeued."),
                "active": _HELD,
            },
            ngettext_lazy(
                "%(count)d job was cancelled and is in the morgue.",
                "%(count)d jobs were cancelled and are in the morgue.",
                "count",
            ),
            _cancel,
        ),
        Action(
            "remove",
            "remove_job",
            {name: _("Remove") for name in (*SETS, LOST)},
            {**dict.fromkeys((*SETS, LOST), _GONE), "active": _HELD},
            ngettext_lazy("%(count)d job was removed.", "%(count)d jobs were removed.", "count"),
            _remove,
            deletes=True,
        ),
    )
}
NO_LONGER = {
    "pending": ngettext_lazy(
        "%(count)d is no longer pending.", "%(count)d are no longer pending.", "count"
    ),
    "active": ngettext_lazy(
        "%(count)d is no longer held.", "%(count)d are no longer held.", "count"
    ),
    "schedule": ngettext_lazy(
        "%(count)d is no longer scheduled.", "%(count)d are no longer scheduled.", "count"
    ),
    "dead": ngettext_lazy("%(count)d is no longer dead.", "%(count)d are no longer dead.", "count"),
    "done": ngettext_lazy("%(count)d is no longer kept.", "%(count)d are no longer kept.", "count"),
    LOST: ngettext_lazy("%(count)d is no longer lost.", "%(count)d are no longer lost.", "count"),
}
FAILED = ngettext_lazy(
    "%(count)d was refused: its row is damaged.",
    "%(count)d were refused: their rows are damaged.",
    "count",
)
KEPT_OUT = ngettext_lazy(
    "%(count)d was refused: another job holds its unique key.",
    "%(count)d were refused: other jobs hold their unique keys.",
    "count",
)


@dataclass
class Bulk:
    """An action on many jobs, as it stands between two requests.

    :ivar ids: the jobs, when they were selected; otherwise all that `wanted` matches.
    :ivar end: the last entry of the set when it was confirmed: what came later is left alone.
    :ivar after: the last entry that was looked at.
    """

    action: Action
    queue: str
    set: str
    ids: list[str] | None
    wanted: Filter = field(default_factory=Filter)
    total: int = 0  # entries of the set when it was confirmed, or ids
    end: Mark = THE_END
    after: Mark | None = None
    examined: int = 0
    done: int = 0
    missed: int = 0  # no longer there
    failed: int = 0
    kept_out: int = 0  # another job holds the unique key
    finished: bool = False

    def work(self, client: Client, by: str, *, sent: Callable[[int], None]) -> None:
        """Act in batches until all is done or the time of this request is up.

        :param sent: told, before each batch, how many jobs are done so far.
        """
        ends = monotonic() + SECONDS
        for ids in self._batches(client):
            for start in range(0, len(ids), BATCH):
                self._act(client, ids[start : start + BATCH], by, sent)
            if monotonic() >= ends:
                return
        self.finished = True

    def _batches(self, client: Client) -> Iterator[list[str]]:
        if self.ids is not None:
            self.examined = len(self.ids)
            yield self.ids
            return
        # Leases are extended all the time, so the place of a held job means nothing: as many as
        # there were are looked at.
        while self.set != "active" or self.examined < self.total:
            marks = inspector.follow(client, self.queue, self.set, self.after, size=BATCH)
            marks = [mark for mark in marks if mark <= self.end]
            if not marks:
                return
            rows = []
            if self.wanted:
                rows = inspector.load(client, self.queue, self.set, marks, now_ms=_now(client))
            ids = [row.id for row in rows if self.wanted.matches(row)] if self.wanted else None
            self.after = marks[-1]
            self.examined += len(marks)
            yield [mark.id for mark in marks] if ids is None else ids

    def _act(
        self, client: Client, ids: Sequence[str], by: str, sent: Callable[[int], None]
    ) -> None:
        sent(self.done)
        gone = []
        verdicts = self.action.verb(client, self.queue, self.set, ids, by)
        for job_id, verdict in zip(ids, verdicts, strict=True):
            if not isinstance(verdict, EmqError):
                self.done += 1
            elif isinstance(verdict, KeyHeld):
                self.kept_out += 1
            elif isinstance(verdict, (NotInState, JobHeld)):
                self.missed += 1
            elif isinstance(verdict, JobGone):
                gone.append(job_id)
            else:
                raise verdict
        # What is in the set although it has no sound row is damaged; the others have left.
        damaged = inspector.among(client, self.queue, self.set, gone) if self.set in SETS else []
        self.failed += len(damaged)
        self.missed += len(gone) - len(damaged)

    def words(self) -> list[str]:
        """What happened, for a message."""
        told = [str(self.action.done % {"count": self.done})]
        if self.missed:
            told.append(str(NO_LONGER[self.set] % {"count": self.missed}))
        if self.failed:
            told.append(str(FAILED % {"count": self.failed}))
        if self.kept_out:
            told.append(str(KEPT_OUT % {"count": self.kept_out}))
        return told

    # -- as hidden fields of a form: a user who changes them gains nothing, every batch is checked

    def dump(self) -> dict[str, str]:
        """The state, as fields of a form."""
        state = [self.end, self.after, self.total, self.examined, self.done, self.missed]
        return {"state": json.dumps([*state, self.failed, self.kept_out])}

    def load(self, fields: str) -> None:
        """Take over the state from a form. Raises ValueError for what is none."""
        try:
            end, after, *counts = json.loads(fields)
            self.end = Mark(float(end[0]), str(end[1]))
            self.after = Mark(float(after[0]), str(after[1])) if after else None
            numbers = [max(int(count), 0) for count in counts]
            self.total, self.examined, self.done, self.missed, self.failed, self.kept_out = numbers
        except (TypeError, ValueError, IndexError, KeyError, OverflowError) as error:
            raise ValueError(f"no state of an action: {error}") from error


def _now(client: Client) -> int:
    seconds, micros = client.read(lambda raw: raw.time())
    return int(seconds) * 1000 + int(micros) // 1000


def rows_of(bulk: Bulk, client: Client) -> tuple[int, bool]:
    """How many jobs of the set match, looking for a second at most; whether that is all."""
    count, last = 0, 0
    part: list[JobRow] = []
    for part in inspector.walk(client, bulk.queue, bulk.set):
        count += sum(bulk.wanted.matches(row) for row in part)
        last += len(part)
    return count, last >= bulk.total
