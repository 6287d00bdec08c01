"""The shop in the Django admin: adding an order places it, and nobody changes one by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html

from .models import Order, Sales
from .shop import place
from .tasks import report

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin


class Unchanging(ModelAdmin):
    """Rows that are only looked at."""

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


@admin.register(Order)
class OrderAdmin(Unchanging):
    list_display = ("id", "email", "article", "price", "payment", "invoiced_at", "job_page")
    ordering = ("-pk",)
    actions = ("add_up_the_days",)

    def save_model(self, request: HttpRequest, obj: Order, form: Any, change: bool) -> None:
        place(obj)

    @admin.display(description="job")
    def job_page(self, order: Order) -> str:
        url = reverse("admin:django_emq_queue_job", args=["orders", order.job])
        return format_html('<a href="{}">{}</a>', url, order.job)

    @admin.action(description="Add up the days of the selected orders", permissions=["view"])
    def add_up_the_days(self, request: HttpRequest, orders: QuerySet[Order]) -> None:
        days = {timezone.localdate(order.placed_at) for order in orders}
        for day in sorted(days):
            report(day)
        what = "1 report is on its" if len(days) == 1 else f"{len(days)} reports are on their"
        self.message_user(request, f"{what} way.")


@admin.register(Sales)
class SalesAdmin(Unchanging):
    list_display = ("day", "orders", "price")
    ordering = ("-day",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False
