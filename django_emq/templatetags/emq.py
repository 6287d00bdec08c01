"""Template filters of the admin pages."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import template
from django.utils.html import format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from .. import inspector
from ..admin.arguments import line
from ..conf import settings
from ..partitions import folded

register = template.Library()

SETS = {
    "pending": _("Pending"),
    "active": _("Active"),
    "schedule": _("Scheduled"),
    "dead": _("Dead"),
    "done": _("Done"),
    "scheduled": _("Scheduled"),
    "unknown": _("In no set"),
    "absent": _("Gone"),
}


@register.filter
def emq_set(name: str) -> Any:
    """The heading of a set, or of a job's state."""
    return SETS.get(name, name)


STATES = {"running": _("running"), "quiet": _("quiet"), "stopping": _("stopping")}
ASKED = {
    "quiet": _("%(by)s has asked it to take no more jobs; it obeys at its next beat."),
    "resume": _("%(by)s has asked it to take jobs again; it obeys at its next beat."),
    "stop": _("%(by)s has asked it to stop; it obeys at its next beat."),
}


@register.filter
def emq_state(state: str) -> Any:
    """What a worker says that it does."""
    return STATES.get(state, state or "?")


@register.filter
def emq_queues(worker: inspector.Worker) -> str:
    """The queues that a worker serves: one name for all partitions of a queue."""
    return ", ".join(folded(worker.queues))


@register.filter
def emq_asked(worker: inspector.Worker) -> str:
    """What a worker was asked to do and has not done yet."""
    return str(ASKED[worker.asked]) % {"by": worker.asked_by or gettext("Somebody")}


@register.filter
def emq_span(seconds: float | None) -> str:
    """Seconds for people: 0.4 s, 98 s, 3 min, 2.4 h, 5 d."""
    return "-" if seconds is None else inspector.span(float(seconds))


@register.filter
def emq_arguments(row: inspector.JobRow) -> str:
    """The arguments of a job in one short line, secrets hidden."""
    call = row.call
    return line(call, settings().redact) if call else ""


@register.filter
def emq_path(name: str) -> SafeString:
    """A dotted path that may be broken after its dots."""
    return format_html_join(mark_safe(".<wbr>"), "{}", ((part,) for part in name.split(".")))


@register.filter
def emq_since(at: datetime | None, now_ms: int) -> str:
    """How long ago something was, by the server's clock."""
    return "-" if at is None else inspector.span(max(now_ms / 1000 - at.timestamp(), 0.0))


@register.filter
def emq_words(entry: inspector.Entry) -> str:
    """What an entry of the trail says."""
    return inspector.words(entry)
