"""What the shop knows: its orders, and what was sold on each day."""

from __future__ import annotations

from django.db import models

import django_emq as emq


class Order(models.Model):
    """One order: placed, then paid, then invoiced."""

    email = models.EmailField()
    article = models.CharField(max_length=100)
    cents = models.PositiveIntegerField()
    placed_at = models.DateTimeField(auto_now_add=True)
    job = models.CharField(max_length=32, editable=False)  # the job that takes the money
    payment = models.CharField(max_length=50, editable=False)  # the bank's number, once paid
    invoiced_at = models.DateTimeField(null=True, editable=False)

    def __str__(self) -> str:
        return f"order {self.pk}"

    @property
    def price(self) -> str:
        """What it costs, as people write it."""
        return f"{self.cents / 100:.2f} €"


class Sales(emq.FencedModel):
    """What was sold on one day, as the newest report says."""

    day = models.DateField(unique=True)
    orders = models.PositiveIntegerField(default=0)
    cents = models.PositiveIntegerField(default=0)

    class Meta:
        verbose_name_plural = "sales"

    def __str__(self) -> str:
        return str(self.day)

    @property
    def price(self) -> str:
        """What it comes to."""
        return f"{self.cents / 100:.2f} €"
