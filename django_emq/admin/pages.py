"""The pages beside the queues: morgue, workers and server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import messages
from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import doctor, inspector, scripts
from .base import Pages, client

if TYPE_CHECKING:
    from django.urls import URLPattern

WORKERS_MAX = 100  # on the page
QUEUES_MAX = 200  # whose held jobs are read for it
# What a worker can be asked to do: the button, what will happen, and what is told afterwards.
WORDS = {
    "quiet": (
        gettext_lazy("Quiet"),
        gettext_lazy(
            "It takes no more jobs, finishes those that it holds, and stays up: leases are "
            "extended and queues swept as before. Resume ends this. A worker that is started "
            "again is not quiet."
        ),
        gettext_lazy("Worker '%(worker)s' was asked to take no more jobs."),
    ),
    "resume": (
        gettext_lazy("Resume"),
        gettext_lazy("It takes jobs again."),
        gettext_lazy("Worker '%(worker)s' was asked to take jobs again."),
    ),
    "stop": (
        gettext_lazy("Stop"),
        gettext_lazy(
            "It takes no more jobs, hands back what has not started, finishes what runs within "
            "its grace, and ends. What watches over it, systemd for instance, may start another "
            "one."
        ),
        gettext_lazy("Worker '%(worker)s' was asked to stop."),
    ),
}
# The words that mean something to a worker in this state.
OFFERED = {"running": ("quiet", "stop"), "quiet": ("resume", "stop")}


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
        return [
            self.route("", self.workers, "changelist"),
            self.route(
                "<str:worker>/control/",
                self.control,
                "control",
                "POST",
                permission="control_worker",
            ),
        ]

    def workers(self, request: HttpRequest) -> HttpResponse:
        """Workers, the latest beat first, with their jobs; and held jobs of nobody we know."""
        found = inspector.workers(client())
        names = inspector.queues(client())
        rows = inspector.held(client(), names[:QUEUES_MAX])
        may = self.may(request, "control_worker")
        table = [
            (one, [row for row in rows if one.holds(row)], _buttons(one) if may else [])
            for one in found[:WORKERS_MAX]
        ]
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

    def control(self, request: HttpRequest, worker: str) -> HttpResponse:
        """Ask whether a worker shall be quiet, resume or stop; when that is confirmed, tell it."""
        word = request.POST.get("word", "")
        if word not in WORDS:
            raise BadRequest("no such word for a worker")
        label, effect, told = WORDS[word]
        back = reverse("admin:django_emq_worker_changelist", current_app=self.admin_site.name)
        if "confirm" not in request.POST:
            return self.render(
                request,
                "control",
                title=_("%(label)s: %(worker)s?") % {"label": label, "worker": worker},
                worker=worker,
                word=word,
                label=label,
                effect=effect,
                back=back,
            )
        request.META["emq.sent"] = 0
        if scripts.control(client(), worker, word, by=request.user.get_username()):
            message = str(told) % {"worker": worker}
            self.log(request, worker, message)
            messages.success(request, message)
        else:
            gone = _("There is no worker '%(worker)s' any more. Nothing was done.")
            messages.warning(request, gone % {"worker": worker[:100]})
        return HttpResponseRedirect(back)


def _buttons(worker: inspector.Worker) -> list[dict[str, object]]:
    """What a worker can be asked to do in its state, and was not asked yet."""
    return [
        {"word": word, "label": WORDS[word][0], "stops": word == "stop"}
        for word in OFFERED.get(worker.state, ())
        if word != worker.asked
    ]


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
