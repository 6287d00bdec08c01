"""Signals. Receivers run in a thread of the worker's own, never in the one of the job."""

from __future__ import annotations

from django.dispatch import Signal

#: The lease of a running job was lost. Sent with `job`, its `JobContext`, once for each run.
lease_lost = Signal()
