"""Enqueueing in requests that are transactions (ATOMIC_REQUESTS), on PostgreSQL beside SQLite."""

import pytest
from django.contrib.auth.models import Group
from django.db import connections as databases
from django.db import transaction
from django.http import Http404, HttpResponse
from django.test import Client
from django.urls import path

import django_emq as emq
from django_emq import effects, relay
from django_emq.models import Effect, Outbox
from tests.outbox.boxes import on_sqlite, rows
from tests.probe import tasks
from tests.test_on_commit import stored

pytestmark = [pytest.mark.postgresql, on_sqlite]

made = []  # the jobs of all views, in the order of their calls


def place(request, end):
    """Enqueue in each way, and end in one of several."""
    now = tasks.mark.using(on_commit=False, outbox=False).enqueue(end)
    later = tasks.mark.using(on_commit="pg").enqueue(end)
    boxed = tasks.mark.using(outbox="pg").enqueue(end)
    made.append((now.id, later.id, boxed.id))
    if end == "error":
        raise ZeroDivisionError
    if end == "404":
        raise Http404
    if end == "rollback":
        transaction.set_rollback(True, using="pg")
    return HttpResponse(status=400 if end == "400" else 200)


@transaction.non_atomic_requests(using="pg")
def place_outside(request):
    return place(request, "outside")


urlpatterns = [path("place/<end>/", place), path("outside/", place_outside)]


@pytest.fixture
def browser(pg, settings):
    """A browser whose requests are transactions of PostgreSQL."""
    settings.ROOT_URLCONF = __name__
    databases["pg"].settings_dict["ATOMIC_REQUESTS"] = True
    made.clear()
    yield Client(raise_request_exception=False)
    databases["pg"].settings_dict["ATOMIC_REQUESTS"] = False


@pytest.mark.parametrize("end", ["200", "400", "outside"])
def test_a_request_that_is_committed(client, browser, end):
    """Also one that answers an error: only an exception rolls back. All three jobs are sent."""
    browser.get("/outside/" if end == "outside" else f"/place/{end}/")
    assert stored(client) == list(*made)
    assert rows("pg") == []


@pytest.mark.parametrize("end", ["error", "404", "rollback"])
def test_a_request_that_is_rolled_back(client, browser, end):
    """What was enqueued at once is there; what waited for the commit, in whichever way, is not."""
    browser.get(f"/place/{end}/")
    assert stored(client) == [made[0][0]]
    assert rows("pg") == []
    browser.get("/place/200/")  # the connection is as good as before
    assert stored(client) == [made[0][0], *made[1]]


class ToPostgres:
    """Writes the queue's tables to PostgreSQL, and reads them from a replica that lags behind."""

    def db_for_write(self, model, **hints):
        return "pg" if model._meta.app_label == "django_emq" else None

    def db_for_read(self, model, **hints):
        return "default" if model._meta.app_label == "django_emq" else None


@pytest.mark.parametrize("committed", [True, False])
def test_routers_between_two_databases(client, pg, settings, committed):
    """The outbox is where routers write it, never where they read; it follows that commit alone."""
    settings.DATABASE_ROUTERS = [ToPostgres()]
    settings.EMQ = {**settings.EMQ, "OUTBOX": True}
    assert relay.watched() == ("pg",)
    with transaction.atomic("pg"):
        with transaction.atomic():
            Group.objects.create(name="on SQLite, and committed")
            job = tasks.mark.enqueue(1)
        assert (len(rows("pg")), rows("default"), stored(client)) == (1, [], [])
        transaction.set_rollback(not committed, using="pg")
    assert stored(client) == ([job.id] if committed else [])
    assert rows("pg") == []


def test_effects_of_two_databases(pg, settings):
    """Each is recorded where its block writes, whatever the routers say."""
    settings.DATABASE_ROUTERS = [ToPostgres()]
    for alias in ("pg", "default"):
        for first in (True, False):
            with emq.effect("e", key="k", using=alias) as once:
                assert once.first is first
    assert effects.prune(seconds=0, using="pg") == 1
    assert [Effect.objects.using(alias).count() for alias in ("pg", "default")] == [0, 1]
    assert Outbox.objects.using("pg").count() == 0
