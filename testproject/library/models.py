"""What the jobs find out, and a record of every run: nothing that happened twice stays unseen."""

from __future__ import annotations

from django.db import models


class SourceFile(models.Model):
    """The figures of one file, written by the job `job` under the token `token`."""

    path = models.CharField(max_length=500, unique=True)
    lines = models.PositiveIntegerField()
    tokens = models.PositiveIntegerField()
    functions = models.PositiveIntegerField()
    classes = models.PositiveIntegerField()
    longest = models.CharField("longest function", max_length=500, blank=True)
    longest_lines = models.PositiveIntegerField()
    job = models.CharField(max_length=32)
    token = models.PositiveBigIntegerField()

    class Meta:
        ordering = ("path",)

    def __str__(self) -> str:
        return self.path


class Run(models.Model):
    """One run of a job. The row is there before the run begins: a killed run leaves it open."""

    class Outcome(models.TextChoices):
        OPEN = "open", "running or killed"
        WRITTEN = "written", "result written"
        REPEATED = "repeated", "result was there already"
        FAILED = "failed", "failed"

    job = models.CharField(max_length=32)
    token = models.PositiveBigIntegerField()
    path = models.CharField(max_length=500)
    pid = models.PositiveIntegerField("process")
    outcome = models.CharField(max_length=10, choices=Outcome, default=Outcome.OPEN)
    started_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("pk",)
        constraints = (
            # The queue hands a token out once. If it ever did not, this would show it.
            models.UniqueConstraint(fields=("job", "token"), name="library_run_token"),
        )

    def __str__(self) -> str:
        return f"{self.path} (token {self.token})"
