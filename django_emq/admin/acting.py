"""The one view through which jobs are changed: it asks first, then works in bounded batches."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.admin.models import CHANGE, DELETION
from django.contrib.admin.utils import quote
from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from .. import inspector
from ..inspector import SETS, Filter, Mark
from .actions import ACTIONS, LOST, Action, Bulk, rows_of
from .base import Pages, client

IDS_SHOWN = 20
IDS_MAX = 500  # selected on one page
AGES = (0, 600, 3600, 86400, 604800)  # seconds, of the filter "older than"


def read_filter(fields: QueryDict) -> Filter:
    """The filter in a query string or form; what is no age is none."""
    older = fields.get("older", "")
    return Filter(
        task=fields.get("task", "").strip()[:500],
        error=fields.get("error", "").strip()[:500],
        older_s=float(older) if older.isdecimal() and len(older) < 10 else 0.0,
        exact=fields.get("exact") == "1",
    )


def filter_fields(wanted: Filter) -> dict[str, str]:
    """The filter as fields of a query string or form; empty ones left out, unless it is exact."""
    fields = {
        "task": wanted.task,
        "error": wanted.error,
        "older": f"{wanted.older_s:.0f}" if wanted.older_s else "",
        "exact": "1" if wanted.exact else "",
    }
    return {name: value for name, value in fields.items() if value}


class Acting(Pages):
    """Actions on jobs: the first POST shows what will happen, the confirmed ones do it."""

    def buttons(self, request: HttpRequest, name: str) -> list[dict[str, Any]]:
        """The actions that this user may do to the jobs of a set."""
        return [
            {"name": action.name, "label": action.labels[name], "deletes": action.deletes}
            for action in ACTIONS.values()
            if name in action.labels and self.may(request, action.permission)
        ]

    def act(self, request: HttpRequest, queue: str) -> HttpResponse:
        """Ask, or do a second's worth of an action and go on from there."""
        bulk = self._read(request, queue)
        self.demand(request, bulk.action.permission)
        self.queue(queue)
        if "confirm" not in request.POST:
            return self._ask(request, bulk)
        try:
            bulk.load(request.POST.get("state", ""))
        except ValueError as error:
            raise BadRequest(str(error)) from error
        before = bulk.done
        try:
            bulk.work(client(), request.user.get_username(), sent=_note(request))
        finally:
            if bulk.done > before:
                self._log(request, bulk, bulk.done - before)
        if not bulk.finished:
            return self._progress(request, bulk)
        level = messages.SUCCESS if bulk.done else messages.WARNING
        messages.add_message(request, level, " ".join(bulk.words()))
        return HttpResponseRedirect(self._back(request, bulk))

    def _read(self, request: HttpRequest, queue: str) -> Bulk:
        """The action that a form asks for. Raises BadRequest for what no form of ours sends."""
        form = request.POST
        action = ACTIONS.get(form.get("action", ""))
        name = form.get("set", "")
        if action is None or name not in action.labels:
            raise BadRequest("no such action on this set")
        selected = form.get("scope", "selected") == "selected"
        ids = list(dict.fromkeys(form.getlist("ids"))) if selected or name == LOST else None
        if ids is not None and len(ids) > IDS_MAX:
            raise BadRequest("too many jobs selected")
        wanted = Filter() if selected else read_filter(form)
        return Bulk(action, queue, name, ids, wanted)

    def _ask(self, request: HttpRequest, bulk: Bulk) -> HttpResponse:
        """The page that says how many, and what will happen."""
        if bulk.ids is not None and not bulk.ids:
            messages.warning(request, _("No job was selected. Nothing was done."))
            return HttpResponseRedirect(self._back(request, bulk))
        count, whole = len(bulk.ids or ()), True
        bulk.total = count
        if bulk.ids is None:
            bulk.total = inspector.counts(client(), bulk.queue, (bulk.set,))[bulk.set]
            if bulk.set != "active":
                last = inspector.follow(client(), bulk.queue, bulk.set, None, size=1, newest=True)
                bulk.end = last[0] if last else Mark(0.0, "")
            count, whole = rows_of(bulk, client()) if bulk.wanted else (bulk.total, True)
        return self.render(
            request,
            "confirm",
            title=_question(bulk.action, bulk.set, count, whole),
            bulk=bulk,
            count=count,
            whole=whole,
            label=bulk.action.labels[bulk.set],
            effect=bulk.action.effects[bulk.set],
            ids=(bulk.ids or [])[:IDS_SHOWN],
            more=max(len(bulk.ids or ()) - IDS_SHOWN, 0),
            fields=self._fields(request, bulk),
            back=self._back(request, bulk),
        )

    def _progress(self, request: HttpRequest, bulk: Bulk) -> HttpResponse:
        """The page between two batches: it goes on by itself, or by its button."""
        return self.render(
            request,
            "progress",
            title=bulk.action.labels[bulk.set],
            bulk=bulk,
            words=bulk.words(),
            fields=self._fields(request, bulk),
            back=self._back(request, bulk),
        )

    def _fields(self, request: HttpRequest, bulk: Bulk) -> list[tuple[str, str]]:
        """What the next form has to carry, as hidden fields."""
        scope = "selected" if bulk.ids is not None else "all"
        fields = {"action": bulk.action.name, "set": bulk.set, "scope": scope}
        fields |= filter_fields(bulk.wanted) | bulk.dump()
        if goes_to := request.POST.get("next", ""):
            fields["next"] = goes_to
        return [*fields.items(), *(("ids", one) for one in bulk.ids or ())]

    def _log(self, request: HttpRequest, bulk: Bulk, count: int) -> None:
        message = str(bulk.action.done % {"count": count})
        details = [f"{name} {value}" for name, value in filter_fields(bulk.wanted).items()]
        if bulk.ids is not None:
            details += bulk.ids[:IDS_SHOWN]
        scope = f" ({bulk.set}: {', '.join(details) or 'all'})"
        flag = DELETION if bulk.action.deletes else CHANGE
        self.log(request, bulk.queue, message + scope, flag)

    def _back(self, request: HttpRequest, bulk: Bulk) -> str:
        """Where the user came from: the job's page, the morgue, or the set."""
        goes_to = request.POST.get("next", "")
        site = self.admin_site.name
        if goes_to == "job" and bulk.ids and not (bulk.action.deletes and bulk.finished):
            kwargs = {"queue": quote(bulk.queue), "job_id": quote(bulk.ids[0])}
            return reverse("admin:django_emq_queue_job", kwargs=kwargs, current_app=site)
        if goes_to == "morgue":
            return reverse("admin:django_emq_morgue_changelist", current_app=site)
        kwargs = {"queue": quote(bulk.queue)}
        if bulk.set not in SETS:
            return reverse("admin:django_emq_queue_change", kwargs=kwargs, current_app=site)
        kwargs["name"] = bulk.set
        back = reverse("admin:django_emq_queue_set", kwargs=kwargs, current_app=site)
        query = QueryDict(mutable=True)
        query.update(filter_fields(bulk.wanted))
        return f"{back}?{query.urlencode()}" if bulk.wanted else back


def _note(request: HttpRequest) -> Any:
    """Let the page for a server that is away know how far the action came."""

    def sent(done: int) -> None:
        request.META["emq.sent"] = done

    return sent


def _question(action: Action, name: str, count: int, whole: bool) -> str:
    facts = {"label": action.labels[name], "count": count}
    if not whole:
        return _("%(label)s: at least %(count)d jobs?") % facts
    return ngettext("%(label)s: %(count)d job?", "%(label)s: %(count)d jobs?", count) % facts
