"""Tables that the tasks of the tests write to; made without migrations."""

from django.db import models

import django_emq as emq


class Invoice(emq.FencedModel):
    """Each charge is a row, so that a second one of the same number can be counted."""

    number = models.CharField(max_length=50)
    text = models.TextField(default="")
    total = models.IntegerField(default=0)

    def __str__(self):
        return self.number


class Payment(models.Model):
    """What the examples of docs/effects.md write."""

    order_id = models.IntegerField()
    amount = models.IntegerField()
    reference = models.CharField(max_length=50, default="")

    def __str__(self):
        return self.reference
