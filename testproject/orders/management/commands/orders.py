"""The shop on the command line."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import date, timedelta
from typing import Any

from django.core.management.base import BaseCommand
from django.utils import timezone

import django_emq as emq
from django_emq import connections, inspector
from orders.models import Order
from orders.shop import place
from orders.tasks import report


class Command(BaseCommand):
    help = "Place orders, list them, or have a day added up."

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        placing = verbs.add_parser("place", help="place so many orders")
        placing.add_argument("count", type=int, nargs="?", default=1)
        verbs.add_parser("list", help="all orders, and where the job of each is")
        reporting = verbs.add_parser("report", help="add up a day, yesterday by default; for cron")
        reporting.add_argument("day", type=date.fromisoformat, nargs="?")

    def handle(self, *args: Any, verb: str, **options: Any) -> None:
        if verb == "place":
            for number in range(options["count"]):
                order = Order(email="ada@example.org", article="tea", cents=500 + number)
                self.stdout.write(f"{place(order)}: job {order.job}")
        elif verb == "report":
            day = options["day"] or timezone.localdate() - timedelta(days=1)
            self.stdout.write(f"job {report(day).id}")
        else:
            for order in Order.objects.order_by("pk"):
                invoice = "invoiced" if order.invoiced_at else "not invoiced"
                paid = order.payment or "not paid"
                self.stdout.write(f"{order}: {order.price}, {paid}, {invoice}; {where(order)}")


def where(order: Order) -> str:
    """Where the job of an order is, and what went wrong last."""
    try:
        row = inspector.row(connections.client(), "orders", order.job)
    except emq.JobGone:  # not sent yet, or done more than a day ago
        return "job not there"
    error = f" after {row['last_error']}" if "last_error" in row else ""
    return f"job {row['state']}{error}"
