"""What waits in the outbox of the database that the routers read it from. To look at only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import admin
from django.http import HttpRequest

from ..models import Outbox

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Outbox]
else:
    ModelAdmin = admin.ModelAdmin


class OutboxAdmin(ModelAdmin):
    """A list of the rows. Arguments are not shown: who may look need not see what is secret."""

    list_display = ("id", "queue", "count", "stored_at")
    list_filter = ("queue",)
    fields = ("id", "queue", "count", "stored_at")
    ordering = ("id",)
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Outbox | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Outbox | None = None) -> bool:
        return False
