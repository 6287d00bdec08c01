"""The pages beside the queues: morgue, workers and server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from .. import doctor, inspector, scripts
from .base import Pages, client

if TYPE_CHECKING:
    from django.urls import URLPattern

WORKERS_MAX = 100  # on the page
QUEUES_MAX = 200  # whose held jobs are read for it


class MorgueAdmin(Pages):
    """The newest dead jobs of all queues, grouped by what killed them."""

    def get_urls(self) -> list[URLPattern]:
        return [self.route("", self.morgue, "changelist")]

    def morgue(self, request: HttpRequest) -> HttpResponse:
        """Groups, the newest death first; the actions are those of the queues' pages."""
        names = inspector.queues(client())
        found = inspector.morgue(client(), names)
        view = self.may(request, "view_queue")
        return self.render(
            request,
            "morgue",
            title=_("Morgue"),
            morgue=found,
            groups=found.groups[:200],
            more=max(len(found.groups) - 200, 0),
            may_view=view,
            may_requeue=view and self.may(request, "requeue_job"),
            may_remove=view and self.may(request, "remove_job"),
        )


class WorkerAdmin(Pages):
    """The workers, and the jobs that they hold."""

    def get_urls(self) -> list[URLPattern]:
        return [self.route("", self.workers, "changelist")]

    def workers(self, request: HttpRequest) -> HttpResponse:
        """Workers, the latest beat first, with their jobs; and held jobs of nobody we know."""
        found = inspector.workers(client())
        names = inspector.queues(client())
        rows = inspector.held(client(), names[:QUEUES_MAX])
        table = [(one, [row for row in rows if one.holds(row)]) for one in found[:WORKERS_MAX]]
        orphans = [row for row in rows if not any(one.holds(row) for one in found)]
        return self.render(
            request,
            "workers",
            title=_("Workers"),
            workers=table,
            total=len(found),
            orphans=orphans[:100],
            may_view=self.may(request, "view_queue"),
        )


class ServerAdmin(Pages):
    """The server that the queues live on."""

    def get_urls(self) -> list[URLPattern]:
        return [self.route("", self.server, "changelist")]

    def server(self, request: HttpRequest) -> HttpResponse:
        """What the server says of itself, and what doctor and checks find wrong."""
        facts = inspector.server(client())
        names = inspector.queues(client())[:QUEUES_MAX]
        moved = inspector.moved(client(), names)
        found = doctor.examine(client(), facts, role="operator", scans=1)
        return self.render(
            request,
            "server",
            title=_("Server"),
            facts=facts,
            findings=[*found, *doctor.settings_findings()],
            table=[(script, *moved.get(script.name, (None, ""))) for script in facts.scripts],
            version=scripts.VERSION,
        )
