"""The queue in the Django admin: pages over `inspector`, actions over `scripts`.

Registered with the default site. For a site of your own:

>>> from django_emq.admin import register
>>> register(my_site)
"""

from __future__ import annotations

from django.contrib import admin
from django.contrib.admin import AdminSite

from ..models import Morgue, Outbox, Queue, Schedule, Server, Worker
from .outbox import OutboxAdmin
from .pages import MorgueAdmin, ServerAdmin, WorkerAdmin
from .queues import QueueAdmin
from .schedules import ScheduleAdmin


def register(site: AdminSite) -> None:
    """Add the pages to an admin site."""
    site.register(Queue, QueueAdmin)
    site.register(Morgue, MorgueAdmin)
    site.register(Worker, WorkerAdmin)
    site.register(Server, ServerAdmin)
    site.register(Outbox, OutboxAdmin)
    site.register(Schedule, ScheduleAdmin)


register(admin.site)
