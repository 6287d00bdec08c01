"""What the pages of the shop call."""

from __future__ import annotations

from django.db import transaction

from .models import Order
from .tasks import take_payment


def place(order: Order) -> Order:
    """Store an order together with the job that takes the money: both are there, or neither."""
    with transaction.atomic():
        order.save()
        order.job = take_payment.enqueue(order.pk).id
        order.save(update_fields=["job"])
    return order
