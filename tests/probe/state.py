"""Tasks that touch what a process shares between its jobs: databases, language, context."""

import contextvars
import decimal
import logging
import os
import threading

from django.contrib.auth.models import Group
from django.core import checks
from django.core.exceptions import ObjectDoesNotExist
from django.db import connection, connections, transaction
from django.db.backends.signals import connection_created
from django.utils import timezone, translation

import django_emq as emq
from tests.probe.tasks import _append

# As modules do that reckon with money.
decimal.getcontext().prec = 30

colour = contextvars.ContextVar("colour", default="none")


def _on_connect(**kwargs):
    if "PROBE_CONNECTIONS" in os.environ:
        with open(os.environ["PROBE_CONNECTIONS"], "a") as file:
            file.write(f"{os.getpid()} {threading.get_ident()}\n")


connection_created.connect(_on_connect)


@checks.register("emq")
def query_at_start(app_configs, **kwargs):
    """Open a connection in the process that the children are forked from, if a test asks for it."""
    if "PROBE_QUERY_AT_START" in os.environ:
        Group.objects.count()
    return []


@emq.task(backoff=0, max_attempts=1)
def paint(x, fail=False):
    """Change all that a well-behaved worker puts back."""
    translation.activate("de")
    timezone.activate("Asia/Tokyo")
    colour.set("red")
    decimal.getcontext().prec = 3
    _append(x)
    if fail:
        raise ValueError("painted, and failed")


@emq.task
def look(x):
    """Mark what `paint` has changed."""
    zone = timezone.get_current_timezone_name()
    precision = decimal.getcontext().prec
    _append(f"{x} {translation.get_language()} {zone} {colour.get()} {precision}")


@emq.task
async def apaint(x):
    paint.func(x)


@emq.task
async def alook(x):
    look.func(x)


@emq.task(backoff=0)
def count_groups(x, databases=("default",)):
    """Run one query for each alias; mark the result and the database's name for the session."""
    for alias in databases:
        _append(f"{x} {Group.objects.using(alias).count()} {_session(alias)}")


def _session(alias):
    connection = connections[alias]
    if connection.vendor == "sqlite":
        return id(connection.connection)
    with connection.cursor() as cursor:
        name = "connection_id" if connection.vendor == "mysql" else "pg_backend_pid"
        cursor.execute(f"select {name}()")
        return cursor.fetchone()[0]


@emq.task
def log_and_mark(x):
    logging.getLogger("probe").info("job %s", x)
    _append(x)


@emq.task
async def acount_groups(x):
    _append(f"{x} {await Group.objects.acount()}")


@emq.task
def mark_open_connections():
    """Mark how many database connections this thread has open."""
    _append(f"open {sum(c.connection is not None for c in connections.all())}")


@emq.task(backoff=0)
def cut_then_count(x):
    """At the first attempt have the connection die in the middle of the job."""
    count = Group.objects.count()
    if emq.current_job().attempt == 1:
        with connection.cursor() as cursor:
            cursor.execute("select pg_terminate_backend(pg_backend_pid())")
    _append(f"{x} {count}")


@emq.task(backoff=0, max_attempts=1)
def break_transaction(kind):
    """Leave the connection in a state that harms whoever uses it next."""
    if kind == "failed query":
        try:
            with transaction.atomic():
                Group.objects.create(name="from a broken job")
                with connection.cursor() as cursor:
                    cursor.execute("select nothing from nowhere")
        except Exception:
            _append(kind)
            raise
    elif kind == "autocommit":
        transaction.set_autocommit(False)
        Group.objects.create(name="never committed")
    elif kind == "aborted":
        transaction.set_autocommit(False)
        try:
            with connection.cursor() as cursor:
                cursor.execute("select nothing from nowhere")
        except Exception:
            _append(kind)
            return
    elif kind == "cursor":
        iterator = Group.objects.all().iterator()
        next(iterator, None)
        _kept.append(iterator)
    elif kind == "search path":
        with connection.cursor() as cursor:
            cursor.execute("set search_path to nowhere")
    elif kind == "closed":
        connection.ensure_connection()
        connection.connection.close()
    _append(kind)


_kept = []


@emq.task(max_attempts=3, backoff=0)
def rename(pk):
    """Needs a row that may be gone."""
    Group.objects.get(pk=pk)


def _unless_gone(failures, error):
    return None if isinstance(error, ObjectDoesNotExist) else 0


@emq.task(name="probe.rename_or_give_up", max_attempts=3, backoff=_unless_gone)
def rename_or_give_up(pk):
    """The same, and one that is gone does not come back."""
    Group.objects.get(pk=pk)
