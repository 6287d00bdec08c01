"""What the shop does behind the page: an invoice, a payment, and a report of each day."""

from __future__ import annotations

from datetime import date, timedelta

from django.core.mail import send_mail
from django.db.models import Count, Sum
from django.utils import timezone

import django_emq as emq

from .bank import our_bank
from .models import Order, Sales


@emq.task(queue="mail")
def send_invoice(order_id: int) -> None:
    """Send the invoice of an order."""
    order = Order.objects.get(pk=order_id)
    with emq.effect("invoice") as once:
        if once.first:
            Order.objects.filter(pk=order_id).update(invoiced_at=timezone.now())
            # Last, since a mail cannot be rolled back: what can fail has failed before.
            text = f"{order.article}: {order.price}, paid ({order.payment}). Thank you."
            send_mail(f"Invoice {order_id}", text, None, [order.email])


@emq.task(
    queue="orders",
    max_attempts=20,
    backoff=emq.Exponential(base=1, cap=600),
    result_ttl=timedelta(days=1),
)
def take_payment(order_id: int) -> str:
    """Charge an order, book the payment and have the invoice sent; answer the payment's number."""
    order = Order.objects.get(pk=order_id)
    # No transaction is open while the bank thinks. A run that is killed after this line will ask
    # again, with the same key, and be told the same number.
    payment = our_bank().charge(order.cents, key=emq.idempotency_key("payment"))
    with emq.effect("booked") as once:
        if once.first:
            Order.objects.filter(pk=order_id).update(payment=payment)
            send_invoice.enqueue(order_id)  # into the outbox: a part of this transaction
    return payment


@emq.task(queue="reports", result_ttl=timedelta(days=30))
def add_up(day: str) -> dict[str, int]:
    """Write down what was sold on a day, and answer it."""
    paid = Order.objects.filter(placed_at__date=date.fromisoformat(day)).exclude(payment="")
    sold: dict[str, int] = paid.aggregate(orders=Count("pk"), cents=Sum("cents", default=0))
    Sales.objects.get_or_create(day=day)
    # Two reports of one day may run at once. The one that began first must not write last.
    emq.fenced_update(Sales.objects.filter(day=day), **sold)
    return sold


def report(day: date) -> emq.Job:
    """Have a day added up: every night, and whenever somebody asks."""
    return add_up.using(fence_key=f"sales:{day}").enqueue(day.isoformat())


@emq.task(queue="reports")
def nightly_report() -> None:
    """Have the day added up that ended before this was planned, however late it runs."""
    report(timezone.localdate(emq.current_job().planned_at) - timedelta(days=1))
