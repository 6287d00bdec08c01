"""All schedules, those of the code too, and the editor of those that people keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import inspector, stored, ticker
from ..exceptions import EmqError
from ..models import Schedule
from .base import Pages, client

if TYPE_CHECKING:
    from django.forms import ModelForm
    from django.urls import URLPattern

SOURCES = {
    "code": gettext_lazy("in the code"),
    "database": gettext_lazy("here"),
    "": gettext_lazy("by a program"),
}


class ScheduleAdmin(Pages):
    """One list of what the server ticks; rows of the database are added, changed and deleted."""

    fieldsets = (
        (None, {"fields": ("name", "task", "args", "kwargs", "enabled")}),
        (gettext_lazy("When"), {"fields": ("cron", "tz", "every", "misfire", "coming")}),
        (gettext_lazy("Where"), {"fields": ("queue", "priority", "owner")}),
    )
    search_fields = ("name", "task", "owner")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.may(request, "add_schedule")

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.may(request, "change_schedule")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.may(request, "delete_schedule")

    def get_urls(self) -> list[URLPattern]:
        return [
            self.route("", self.schedules, "changelist"),
            self.route("act/", self.act, "act", "POST", permission="operate_schedule"),
            *super().get_urls(),
        ]

    # -- the list -----------------------------------------------------------------------------

    def schedules(self, request: HttpRequest) -> HttpResponse:
        """Every schedule on the server, and the rows that it does not know."""
        found = inspector.schedules(client())
        rows = {row.name: row for row in Schedule.objects.all()}
        there = {one.name for one in found if one.source == stored.SOURCE}
        return self.render(
            request,
            "schedules",
            title=_("Schedules"),
            schedules=[
                (one, rows.get(one.name) if one.source == stored.SOURCE else None, _source(one))
                for one in found
            ],
            missing=[row for name, row in rows.items() if name not in there],
            may_add=self.has_add_permission(request),
            may_act=self.may(request, "operate_schedule"),
            may_view=self.may(request, "view_queue"),
        )

    def act(self, request: HttpRequest) -> HttpResponse:
        """Switch a schedule on or off, or run it now, as the form says; then back to the list."""
        form = request.POST
        name, queue, to = form.get("name", ""), self.queue(form.get("queue", "")), form.get("to")
        if to not in ("on", "off", "run"):
            raise BadRequest("no such action on a schedule")
        known = {one.name: one for one in inspector.schedules(client(), [queue])}
        if name not in known:
            messages.warning(
                request, _("There is no schedule '%(name)s' any more.") % {"name": name}
            )
            return self._back()
        request.META["emq.sent"] = 0
        if to == "run":
            job = ticker.run_now(client(), queue, name)
            told = _("Schedule '%(name)s' was run: job %(id)s.") % {"name": name, "id": job.id}
        else:
            on = to == "on"
            self._switch(request, known[name], on=on)
            told = _("Schedule '%(name)s' is on.") if on else _("Schedule '%(name)s' is off.")
            told = told % {"name": name}
        self.log(request, name, told)
        messages.success(request, told)
        return self._back()

    def _switch(self, request: HttpRequest, one: inspector.Schedule, *, on: bool) -> None:
        if one.source == stored.SOURCE:  # so that the editor shows the same
            stored.switch(one.name, on=on)
        ticker.switch(client(), one.queue, one.name, on=on, by=request.user.get_username())

    def _back(self) -> HttpResponse:
        site = self.admin_site.name
        return HttpResponseRedirect(
            reverse("admin:django_emq_schedule_changelist", current_app=site)
        )

    # -- the editor ---------------------------------------------------------------------------

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """The name is what the server knows it by, so it stays."""
        return ("coming",) if obj is None else ("name", "coming")

    def save_model(
        self, request: HttpRequest, obj: Schedule, form: ModelForm[Schedule], change: bool
    ) -> None:
        """Save; whoever adds one answers for it, unless somebody else is named."""
        if not change and not obj.owner:
            obj.owner = request.user.get_username()
        super().save_model(request, obj, form, change)

    @admin.display(description=gettext_lazy("next times"))
    def coming(self, row: Schedule) -> str:
        """The next five times, by the clock of the zone and by UTC; with what is saved."""
        try:
            where = inspector.places(client(), row.name, stored.SOURCE) if row.pk else []
            found = inspector.schedules(client(), where)
        except EmqError as error:
            return str(error)
        times = [text for one in found if one.name == row.name for text in one.said]
        return "; ".join(times) or "-"


def _source(one: inspector.Schedule) -> str:
    return str(SOURCES.get(one.source, one.source))
