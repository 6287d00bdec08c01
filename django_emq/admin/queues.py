"""Pages of the queues: all of them, one with its sets, one job, and the payload's editor."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.admin.utils import quote
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import inspector, scripts, signing, whole
from ..conf import settings
from ..exceptions import JobGone, Refused
from ..inspector import SETS, Filter, JobRow, Mark, QueueStats, Worker
from ..partitions import families
from .acting import AGES, Acting, filter_fields, read_filter
from .base import client
from .chart import chart
from .forms import PayloadForm
from .jobs import describe

if TYPE_CHECKING:
    from django.urls import URLPattern

QUEUES_MAX = 100  # on one page
ROWS = 50  # jobs on one page
EDITABLE = ("pending", "schedule", "dead")
# What the order of a set is, and its reverse.
ORDERS = {
    "pending": (gettext_lazy("next to run first"), gettext_lazy("last to run first")),
    "active": (gettext_lazy("first to lapse first"), gettext_lazy("last to lapse first")),
    "schedule": (gettext_lazy("first due first"), gettext_lazy("last due first")),
    "dead": (gettext_lazy("oldest death first"), gettext_lazy("newest death first")),
    "done": (gettext_lazy("first to go first"), gettext_lazy("last to go first")),
}


class QueueAdmin(Acting):
    """Queues and jobs."""

    def get_urls(self) -> list[URLPattern]:
        route = self.route
        return [
            route("", self.queues, "changelist"),
            route("<str:queue>/act/", self.act, "act", "POST"),
            route("<str:queue>/pause/", self.pause, "pause", "POST", permission="pause_queue"),
            route("<str:queue>/job/<str:job_id>/", self.job, "job"),
            route(
                "<str:queue>/job/<str:job_id>/edit/",
                self.edit,
                "edit",
                *("GET", "HEAD", "POST"),
                permission="edit_job",
            ),
            route("<str:queue>/", self.jobs, "change"),
            route("<str:queue>/<str:name>/", self.jobs, "set"),
        ]

    # -- all queues ---------------------------------------------------------------------------

    def queues(self, request: HttpRequest) -> HttpResponse:
        """All queues with their figures, or the partitions of one, and the search for a job."""
        names = inspector.queues(client())
        wanted = request.GET.get("q", "").strip()
        if wanted and (found := self._find(request, wanted, names)):
            return found
        of = request.GET.get("of", "")
        groups = families(names)
        if of:
            groups = {name: [name] for name in groups.get(of, ())}
        pages = list(_pages(groups))
        number = _page(request, len(pages))
        page = pages[number - 1]
        shown = [name for part in page.values() for name in part]
        stats = {one.queue: one for one in inspector.overview(client(), shown)}
        listening = inspector.workers(client())
        rows = [_row(name, [stats[part] for part in page[name]], listening) for name in page]
        return self.render(
            request,
            "queues",
            title=_("Partitions of %(queue)s") % {"queue": of} if of else _("Queues"),
            of=of,
            queues=rows,
            totals={name: sum(one.counts[name] for one in stats.values()) for name in SETS},
            workers=len(listening),
            chart=chart(inspector.last_hour(client(), shown)),
            query=wanted,
            number=number,
            pages=len(pages),
            may_pause=self.may(request, "pause_queue"),
        )

    def _find(self, request: HttpRequest, job_id: str, names: list[str]) -> HttpResponse | None:
        """The page of the job that was searched for, or a message."""
        found = inspector.locate(client(), job_id, names)
        if found:
            return HttpResponseRedirect(self._url("job", queue=found[0], job_id=job_id))
        messages.warning(
            request,
            _("No queue has a job '%(id)s': it was completed, discarded or removed.")
            % {"id": job_id[:100]},
        )
        return None

    def pause(self, request: HttpRequest, queue: str) -> HttpResponse:
        """Pause or resume a queue with all its partitions, as the form says, and go back."""
        if settings().parts(queue) == (queue,):
            self.queue(queue)
        by = request.user.get_username()
        request.META["emq.sent"] = 0
        if request.POST.get("to") == "resume":
            changed = whole.resume(client(), queue, by=by)
            told = _("Queue '%(queue)s' was resumed.") if changed else _("It was not paused.")
        else:
            why = request.POST.get("why", "").strip()[:200]
            changed = whole.pause(client(), queue, by=by, why=why)
            told = _("Queue '%(queue)s' is paused.") if changed else _("It was paused before.")
        told = told % {"queue": queue}
        if changed:
            self.log(request, queue, told)
        messages.add_message(request, messages.SUCCESS if changed else messages.WARNING, told)
        if request.POST.get("next") == "queues":
            of = settings().whole(queue)
            query = f"?{urlencode({'of': of})}" if of != queue else ""
            return HttpResponseRedirect(self._url("changelist") + query)
        return HttpResponseRedirect(self._url("change", queue=queue))

    # -- one queue ----------------------------------------------------------------------------

    def jobs(self, request: HttpRequest, queue: str, name: str = "") -> HttpResponse:
        """One set of a queue, filtered or page by page."""
        self.queue(queue)
        wanted = request.GET.get("q", "").strip()
        if wanted and (found := self._find(request, wanted, [queue])):
            return found
        (stats,) = inspector.overview(client(), [queue])
        if name and name not in SETS:
            raise Http404(_("There is no set '%(name)s'.") % {"name": name})
        name = name or next((one for one in SETS if stats.counts[one]), "pending")
        newest = request.GET.get("order", "new" if name in ("dead", "done") else "old") == "new"
        filtered = read_filter(request.GET)
        listed = self._listed(request, queue, name, filtered, newest)
        return self.render(
            request,
            "queue",
            title=queue,
            queue=queue,
            stats=stats,
            set=name,
            newest=newest,
            tabs=[(one, stats.counts[one]) for one in SETS],
            wanted=filtered,
            ages=AGES,
            orders=ORDERS[name],
            buttons=self.buttons(request, name),
            query=wanted,
            fields=filter_fields(filtered),
            chart=chart(inspector.last_hour(client(), [queue])),
            workers=inspector.served(inspector.workers(client()), queue),
            trail=inspector.trail(client(), queue, count=10),
            may_pause=self.may(request, "pause_queue"),
            **listed,
        )

    def _listed(
        self, request: HttpRequest, queue: str, name: str, wanted: Filter, newest: bool
    ) -> dict[str, Any]:
        """The rows of a page, and how to get to the next one."""
        if not wanted:
            page = inspector.page(
                client(), queue, name, _page(request, None), size=ROWS, newest=newest
            )
            return {**_listing(page.rows), "page": page, "found": None}
        after = _read_mark(request.GET.get("after", ""))
        found = inspector.find(client(), queue, name, wanted, after=after, newest=newest, size=ROWS)
        there = found.next and json.dumps(list(found.next))
        return {**_listing(found.rows), "page": None, "found": found, "after": there}

    # -- one job ------------------------------------------------------------------------------

    def job(self, request: HttpRequest, queue: str, job_id: str) -> HttpResponse:
        """Everything about one job."""
        detail = self._detail(queue, job_id)
        place = detail.row.set or ("lost" if detail.state == "unknown" else "")
        return self.render(
            request,
            "job",
            title=_("Job %(id)s") % {"id": job_id},
            queue=queue,
            buttons=self.buttons(request, place),
            place=place,
            may_edit=detail.row.set in EDITABLE and self.may(request, "edit_job"),
            holder=self._holder(detail.row),
            **describe(detail, inspector.workers(client())),
        )

    def _holder(self, row: JobRow) -> str | None:
        """The job that holds the unique key of this one, where it has a key."""
        digest, _, until = row.fields.get("unique", "").partition(" ")
        return inspector.holder(client(), row.queue, digest) if until else None

    def edit(self, request: HttpRequest, queue: str, job_id: str) -> HttpResponse:
        """The arguments of a job that waits or is dead, to change them."""
        row = self._detail(queue, job_id).row
        if row.set not in EDITABLE or row.payload is None:
            messages.warning(request, _("Only waiting and dead jobs can be edited."))
            return HttpResponseRedirect(self._url("job", queue=queue, job_id=job_id))
        form = PayloadForm(row.payload, request.POST if request.method == "POST" else None)
        if form.is_valid():
            by = request.user.get_username()
            request.META["emq.sent"] = 0
            try:
                payload = signing.sealed(form.payload, job_id) + form.rest
                scripts.update(client(), queue, job_id, payload, by=by, was=row.payload)
            except Refused as refusal:
                messages.error(request, _("Nothing was changed: %(why)s") % {"why": refusal})
            else:
                told = _("The payload of job %(id)s was changed.") % {"id": job_id}
                self.log(request, queue, told)
                messages.success(request, told)
            return HttpResponseRedirect(self._url("job", queue=queue, job_id=job_id))
        return self.render(
            request,
            "edit",
            title=_("Edit job %(id)s") % {"id": job_id},
            queue=queue,
            job_id=job_id,
            row=row,
            form=form,
        )

    def _detail(self, queue: str, job_id: str) -> inspector.JobDetail:
        self.queue(queue)
        try:
            return inspector.job(client(), queue, job_id)
        except JobGone as gone:
            raise Http404(str(gone)) from gone

    def _url(self, view: str, **names: str) -> str:
        kwargs = {name: quote(value) for name, value in names.items()}
        return reverse(
            f"admin:django_emq_queue_{view}", kwargs=kwargs, current_app=self.admin_site.name
        )


def _pages(groups: dict[str, list[str]]) -> Iterator[dict[str, list[str]]]:
    """The queues page by page, by the names that people use; at least one page."""
    page: dict[str, list[str]] = {}
    for name, parts in groups.items():
        if page and sum(map(len, page.values())) + len(parts) > QUEUES_MAX:
            yield page
            page = {}
        page[name] = parts
    yield page


def _row(name: str, found: list[QueueStats], workers: Sequence[Worker]) -> tuple[QueueStats, int]:
    """The figures of a queue, and how many workers serve each part of it that needs one."""
    needed = set(settings().parts(name))
    needed |= {one.queue for one in found if any(one.counts[kind] for kind in SETS[:3])}
    listening = min(len(inspector.served(workers, part)) for part in needed)
    same = len(found) == 1 and found[0].queue == name
    return found[0] if same else inspector.together(name, found), listening


def _listing(rows: list[JobRow]) -> dict[str, Any]:
    """The rows; the column of errors is there when one has failed."""
    return {"rows": rows, "has_errors": any(row.error for row in rows)}


def _page(request: HttpRequest, pages: int | None) -> int:
    """The number of the page that is asked for; 1 for what is no number."""
    text = request.GET.get("p", "1")
    number = int(text) if text.isdecimal() and len(text) < 10 else 1
    return max(min(number, pages or number), 1)


def _read_mark(text: str) -> Mark | None:
    """A place in a set, from a link; None for what is none."""
    try:
        score, job_id = json.loads(text)
        return Mark(float(score), str(job_id))
    except (TypeError, ValueError):
        return None
