"""The shop on the command line."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import date
from typing import Any

from django.core.management.base import BaseCommand
from django.utils import timezone

import django_emq as emq
from django_emq import connections, inspector
from orders import shop, tasks
from orders.bank import our_bank
from orders.models import Order


class Command(BaseCommand):
    help = "Place orders, look at them, or have a day added up."

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        place = verbs.add_parser("place", help="place so many orders")
        place.add_argument("count", type=int, nargs="?", default=1)
        verbs.add_parser("show", help="all orders, and where the job of each is")
        verbs.add_parser("count", help="how many orders there are, and how many charges")
        report = verbs.add_parser("report", help="add up a day, today by default")
        report.add_argument("day", type=date.fromisoformat, nargs="?")

    def handle(self, *args: Any, verb: str, **options: Any) -> None:
        for line in getattr(self, verb)(**options):
            self.stdout.write(line)

    def place(self, count: int, **options: Any) -> list[str]:
        lines = []
        for number in range(count):
            order = Order(email="ada@example.org", article="tea", cents=500 + number)
            lines.append(f"{shop.place(order)}: job {order.job}")
        return lines

    def show(self, **options: Any) -> list[str]:
        lines = []
        for order in Order.objects.order_by("pk"):
            invoice = "invoiced" if order.invoiced_at else "not invoiced"
            lines.append(f"{order}: {order.payment or 'not paid'}, {invoice}; {where(order)}")
        return lines

    def count(self, **options: Any) -> list[str]:
        paid = Order.objects.exclude(payment="").count()
        invoiced = Order.objects.exclude(invoiced_at=None).count()
        charges = len(our_bank().charges())
        return [f"{charges} charges; {paid} of {Order.objects.count()} paid, {invoiced} invoiced"]

    def report(self, day: date | None, **options: Any) -> list[str]:
        return [f"job {tasks.report(day or timezone.localdate()).id}"]


def where(order: Order) -> str:
    """Where the job of an order is, and what went wrong last."""
    try:
        row = inspector.row(connections.client(), "orders", order.job)
    except emq.JobGone:  # not sent yet, or done more than a day ago
        return "job not there"
    error = f" after {row['last_error']}" if "last_error" in row else ""
    return f"job {row['state']}{error}"
