"""Each page says what is on the server."""

import re
from datetime import UTC, datetime
from io import StringIO

import pytest
from django.contrib import admin
from django.core.management import call_command

from django_emq import inspector, scripts
from tests.admin.yard import TASK, admit, kill, payload, texts, url
from tests.conformance import wire
from tests.processes import wait_until


def test_queues(operator, yard):
    """All sets of all queues are counted."""
    page = operator.get(url("queue_changelist"))
    assert page.status_code == 200
    text = page.content.decode()
    assert yard.queue in text
    assert page.context["totals"] == {
        "pending": 3, "active": 1, "schedule": 2, "dead": 4, "done": 1,
    }  # fmt: skip
    assert "<svg" in text


@pytest.mark.parametrize("name", ["pending", "active", "schedule", "dead", "done"])
def test_a_set_of_a_queue(operator, yard, name):
    page = operator.get(url("queue_set", queue=yard.queue, name=name))
    assert page.status_code == 200
    assert sorted(row.id for row in page.context["rows"]) == sorted(getattr(yard, name))
    for job_id in getattr(yard, name):
        assert job_id in page.content.decode()
    assert {row.task for row in page.context["rows"]} == {TASK}
    assert TASK.replace(".", ".<wbr>") in page.content.decode()


@pytest.mark.parametrize("name", ["pending", "active", "schedule", "dead", "done"])
def test_a_job(operator, yard, name):
    job_id = getattr(yard, name)[0]
    page = operator.get(url("queue_job", queue=yard.queue, job_id=job_id))
    assert page.status_code == 200
    assert page.context["why"].reasons
    assert TASK in page.content.decode()


@pytest.mark.parametrize("name", ["morgue", "worker", "server"])
def test_the_other_pages(operator, yard, name):
    page = operator.get(url(f"{name}_changelist"))
    assert page.status_code == 200


def test_edit_page(operator, yard):
    page = operator.get(url("queue_edit", queue=yard.queue, job_id=yard.dead[0]))
    assert page.status_code == 200


def test_the_confirmation(operator, yard):
    page = operator.post(
        url("queue_act", queue=yard.queue), {"action": "requeue", "set": "dead", "scope": "all"}
    )
    assert page.status_code == 200
    assert "4 jobs?" in page.content.decode()


# -- what a page shows ------------------------------------------------------------------------


def test_rows_say_what_matters(operator, client, queue):
    """Task, arguments with secrets hidden, token, failures, error, and the time left."""
    kill(client, queue, [payload(TASK, 1, "a", password="hush", deep=[{"TOKEN": "x1"}])])
    text = operator.get(url("queue_set", queue=queue, name="dead")).content.decode()
    assert "1, &quot;a&quot;, password=&quot;••••••&quot;" in text
    assert "hush" not in text
    assert "x1" not in text
    assert "ValueError: boom" in text


def test_secrets_given_by_position_are_hidden(operator, client, queue, monkeypatch):
    """The task's own signature tells which positional argument is one."""
    from django_emq import registry

    def login(user, password, *token):
        """A task."""

    task = registry.Task(login, "tests.login")
    monkeypatch.setitem(registry._tasks, "tests.login", task)
    (job_id,) = admit(client, queue, [payload("tests.login", "eve", "hush", "t1", "t2")])
    for address in (
        url("queue_set", queue=queue, name="pending"),
        url("queue_job", queue=queue, job_id=job_id),
    ):
        text = operator.get(address).content.decode()
        assert "eve" in text
        for secret in ("hush", "t1", "t2"):
            assert f"&quot;{secret}&quot;" not in text


def test_redact_is_a_setting(operator, client, queue, settings):
    settings.EMQ = {**settings.EMQ, "REDACT": ["Pin"]}
    admit(client, queue, [payload(TASK, pin=1234, password="shown")])
    text = operator.get(url("queue_set", queue=queue, name="pending")).content.decode()
    assert "1234" not in text
    assert "shown" in text


def test_long_arguments_are_shortened(operator, client, queue):
    admit(client, queue, [payload(TASK, "x" * 5000), payload(TASK, "y" * 100_000)])
    text = operator.get(url("queue_set", queue=queue, name="pending")).content.decode()
    assert "x" * 100 in text
    assert "x" * 200 not in text
    assert "97.7" in text  # KB, in place of arguments that are not even read


def test_times_are_those_of_the_server(operator, client, yard):
    page = operator.get(url("queue_set", queue=yard.queue, name="schedule"))
    for row in page.context["rows"]:
        assert 590 < row.left_s <= 600
    page = operator.get(url("queue_set", queue=yard.queue, name="active"))
    (row,) = page.context["rows"]
    assert 0 < row.left_s <= 15
    assert row.worker == "w-7.1"


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ({"task": "probe"}, 4),
        ({"task": "nothing"}, 0),
        ({"error": "boom"}, 4),
        ({"error": "keyerror"}, 0),
        ({"older": "600"}, 0),
        ({"older": "x"}, 4),
        ({"task": TASK, "error": "ValueError", "exact": "1"}, 4),
        ({"task": "probe", "error": "ValueError", "exact": "1"}, 0),
        ({"after": "rubbish", "task": "probe"}, 4),
    ],
)
def test_filter(operator, yard, query, count):
    page = operator.get(url("queue_set", queue=yard.queue, name="dead"), query)
    assert page.status_code == 200
    assert len(page.context["rows"]) == count


def test_a_filter_goes_on_where_it_stopped(operator, client, queue):
    """A full page of matches has a link to the next one; together they are all."""
    ids = kill(client, queue, [payload(TASK, n) for n in range(120)])
    seen, query = [], {"task": "probe", "order": "old"}
    while True:
        page = operator.get(url("queue_set", queue=queue, name="dead"), query)
        seen += [row.id for row in page.context["rows"]]
        if not page.context["found"].next:
            break
        assert "Go on looking" in page.content.decode()
        query["after"] = page.context["after"]
    assert seen == ids


def test_the_order_of_a_set(operator, client, queue):
    ids = admit(client, queue, [payload(TASK, n) for n in range(5)])
    address = url("queue_set", queue=queue, name="pending")
    assert [r.id for r in operator.get(address).context["rows"]] == ids
    rows = operator.get(address, {"order": "new"}).context["rows"]
    assert [r.id for r in rows] == ids[::-1]


def test_search_by_id(operator, yard):
    """The search on both pages leads to the job, in whatever set it is."""
    for job_id in yard.ids():
        target = url("queue_job", queue=yard.queue, job_id=job_id)
        for address in (url("queue_changelist"), url("queue_change", queue=yard.queue)):
            assert operator.get(address, {"q": f" {job_id} "})["Location"] == target
    page = operator.get(url("queue_changelist"), {"q": "JOB404"})
    assert texts(page) == ["No queue has a job 'JOB404': it was completed, discarded or removed."]


def test_a_job_that_is_gone(operator, client, yard):
    """While the trail speaks of it the page tells what happened; without it there is none."""
    scripts.remove(client, yard.queue, [yard.dead[0]], by="bert")
    page = operator.get(url("queue_job", queue=yard.queue, job_id=yard.dead[0]))
    assert page.status_code == 200
    assert "was removed by bert" in page.content.decode()
    assert operator.get(url("queue_job", queue=yard.queue, job_id="JOB404")).status_code == 404


def test_a_job_in_full(operator, client, queue):
    """Log, progress, result and the line of time, with the refusal in red."""
    (job_id,) = admit(client, queue, [payload(TASK, 1)])
    claim = {"worker": "w-7.1", "lease_ms": 1, "count": 1}
    (first,) = scripts.claim(client, queue, request="1", **claim).jobs
    wait_until(lambda: scripts.reap(client, queue, max_stalls=3).returned)
    (second,) = scripts.claim(client, queue, request="2", **claim | {"lease_ms": 9000}).jobs
    wire.log(client, queue, job_id, second.token, "half-way there")
    wire.progress(client, queue, job_id, second.token, "50%")
    (refusal,) = scripts.complete(client, queue, [(job_id, first.token, "")])
    assert "token mismatch" in str(refusal)

    page = operator.get(url("queue_job", queue=queue, job_id=job_id))
    text = page.content.decode()
    assert "half-way there" in text
    assert 'value="50.0"' in text
    assert "It is held by w-7.1 with token 2; the lease ends in" in text
    assert "was refused a settlement that came with token 1, the row has 2" in text
    assert 'class="emq-is-bad"' in text
    (told,) = page.context["why"].refusals
    assert "was taken back: lease of w-7.1 lapsed, stall 1" in told

    scripts.complete(client, queue, [(job_id, second.token, '{"sum": 3}')], keep_ms=60_000)
    page = operator.get(url("queue_job", queue=queue, job_id=job_id))
    assert "&quot;sum&quot;: 3" in page.content.decode()
    assert "It was completed at" in page.content.decode()


def test_workers_with_the_jobs_they_hold(operator, client, yard):
    facts = {"queues": yard.queue, "pid": 7, "state": "running", "jobs": 3}
    scripts.beat(client, "w-7", ttl_ms=60_000, facts=facts)
    page = operator.get(url("worker_changelist"))
    ((worker, held, _),) = page.context["workers"]
    assert worker.id == "w-7"
    assert [row.id for row in held] == yard.active
    assert page.context["orphans"] == []
    scripts.beat(client, "w-7", ttl_ms=0, facts={})
    page = operator.get(url("worker_changelist"))
    assert page.context["workers"] == []
    assert [row.id for row in page.context["orphans"]] == yard.active


def test_morgue_groups(operator, client, queue):
    kill(client, queue, [payload(TASK, n) for n in range(3)], error="KeyError: 'a'")
    kill(client, f"{queue}-2", [payload(TASK, n) for n in range(2)], error="KeyError: 'b'")
    kill(client, queue, [payload("shop.other")], error="shop.Late: too late\nby an hour")
    page = operator.get(url("morgue_changelist"))
    groups = [(g.queue, g.task, g.error, g.count) for g in page.context["groups"]]
    assert groups[0] == (queue, "shop.other", "shop.Late", 1)
    assert sorted(groups[1:]) == [
        (queue, TASK, "KeyError", 3),
        (f"{queue}-2", TASK, "KeyError", 2),
    ]
    assert "by an hour" in page.content.decode()


def test_server(operator, client, yard):
    page = operator.get(url("server_changelist"))
    facts = page.context["facts"]
    assert {one.name for one in facts.scripts} == set(scripts.SCRIPTS)
    loaded = {one.name for one in facts.scripts if one.loaded}
    assert {"enqueue", "claim", "retry", "complete"} <= loaded
    assert facts.refused == []
    assert facts.fence == scripts.VERSION
    assert facts.evalsha["calls"] > 0
    moved = {script.name: (jobs, counter) for script, jobs, counter in page.context["table"]}
    assert moved["enqueue"] == (11, "enqueued")
    assert moved["retry"] == (4, "failed")
    assert moved["pause"] == (None, "")
    assert "11 enqueued" in page.content.decode()


def test_the_server_page_shows_the_doctors_findings(operator, redis, yard, settings):
    """And those of the system checks, each with its id and its fix."""
    settings.EMQ = {"SOCKET_TIMEOUT": 12}
    redis.set("stranger <b>", "x")
    text = operator.get(url("server_changelist")).content.decode()
    for one in ("D050", "W004"):
        assert f"<strong>django_emq.{one}</strong>" in text
    assert "stranger &lt;b&gt;" in text
    assert "Give the queue a database of its own" in text


def test_server_behind_an_acl(operator, client, redis, settings, server):
    """A user who may not ask for INFO and CONFIG gets the page, and what is missing is named."""
    redis.execute_command("ACL", "SETUSER", "guest", "on", "nopass", "~*", "+@all", "-info",
                          "-config")  # fmt: skip
    location = server.url.replace("//", "//guest:any@", 1)
    settings.CACHES = {
        **settings.CACHES,
        "emq": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location},
    }
    try:
        page = operator.get(url("server_changelist"))
        assert page.status_code == 200
        assert page.context["facts"].refused == ["INFO", "CONFIG GET"]
        assert "may not call INFO, CONFIG GET" in page.content.decode()
    finally:
        redis.execute_command("ACL", "DELUSER", "guest")


def test_a_registry_with_strange_names(operator, redis, yard):
    redis.sadd("{emq}:queues", "not a queue", b"\xff", "emq")
    """What can be no queue is left out."""
    page = operator.get(url("queue_changelist"))
    assert [one.queue for one, _ in page.context["queues"]] == [yard.queue]
    for name in ("morgue", "worker"):
        assert operator.get(url(f"{name}_changelist")).status_code == 200


def test_an_empty_server(operator):
    for view in ("queue_changelist", "morgue_changelist", "worker_changelist", "server_changelist"):
        assert operator.get(url(view)).status_code == 200


def test_many_queues_are_paged(operator, client, queue):
    scripts.register(client, [f"{queue}-{n:03}" for n in range(150)])
    assert len(operator.get(url("queue_changelist")).context["queues"]) == 100
    page = operator.get(url("queue_changelist"), {"p": "99"})
    assert len(page.context["queues"]) == 50


# -- how it sits in Django --------------------------------------------------------------------


def test_a_site_of_ones_own(db, client, yard, rf):
    """`register` puts the pages on any site; their links and templates stay on it."""
    from django.contrib.admin import AdminSite
    from django.contrib.auth.models import User
    from django.urls import clear_url_caches, path, set_urlconf

    from django_emq.admin import register

    site = AdminSite(name="backstage")
    register(site)

    class Urls:
        urlpatterns = [path("backstage/", site.urls), path("admin/", admin.site.urls)]

    from django.test import Client as Browser
    from django.test import override_settings

    with override_settings(ROOT_URLCONF=Urls):
        browser = Browser()
        browser.force_login(User.objects.create_superuser("root", password="pw"))
        for address in (
            "/backstage/",
            "/backstage/django_emq/queue/",
            f"/backstage/django_emq/queue/{yard.queue}/dead/",
            f"/backstage/django_emq/queue/{yard.queue}/job/{yard.dead[0]}/",
            "/backstage/django_emq/morgue/",
            "/backstage/django_emq/worker/",
            "/backstage/django_emq/server/",
        ):
            page = browser.get(address)
            assert page.status_code == 200
            assert "/admin/django_emq/" not in page.content.decode()
        sent = {
            "action": "remove", "set": "dead", "ids": yard.dead[:1], "confirm": "1",
            "state": '[[0, ""], null, 0, 0, 0, 0, 0, 0]',
        }  # fmt: skip
        answer = browser.post(f"/backstage/django_emq/queue/{yard.queue}/act/", sent)
        assert answer["Location"] == f"/backstage/django_emq/queue/{yard.queue}/dead/"
    set_urlconf(None)
    clear_url_caches()


def test_the_pages_have_no_tables(db):
    """dumpdata and the like do not look for one, and no migration is missing."""
    from django.db import connection

    from django_emq.models import Morgue, Queue, Server, Worker

    tables = {model._meta.db_table for model in (Morgue, Queue, Server, Worker)}
    assert tables.isdisjoint(connection.introspection.table_names())
    assert list(Queue.objects.all()) == []
    out = StringIO()
    call_command("dumpdata", "django_emq", "--all", stdout=out)
    assert out.getvalue().strip() == "[]"
    call_command("makemigrations", "django_emq", "--check", "--dry-run", stdout=StringIO())


def test_no_page_has_inline_script_or_style(operator, client, yard):
    """What `default-src 'self'` would block is not there."""
    for address in (
        url("queue_changelist"),
        url("queue_set", queue=yard.queue, name="active"),
        url("queue_job", queue=yard.queue, job_id=yard.dead[0]),
        url("queue_edit", queue=yard.queue, job_id=yard.dead[0]),
        url("morgue_changelist"),
        url("worker_changelist"),
        url("server_changelist"),
    ):
        text = operator.get(address).content.decode()
        assert not re.search(r"<script(?![^>]*\bsrc=)", text)
        assert "<style" not in text
        assert not re.search(r"<[^>]*\s(style|on\w+)=", text)


def test_the_chart_is_that_of_the_counters(client, queue):
    """Bars end at the figures, the axis at a round number above them."""
    from django_emq.admin.chart import HEIGHT, chart
    from django_emq.inspector import Minute

    at = datetime(2030, 1, 1, tzinfo=UTC)
    drawn = chart([Minute(at, 7, 4, 1), Minute(at, 0, 0, 0)])
    assert (drawn.top, drawn.enqueued, drawn.finished, drawn.failed) == (10, 7, 4, 1)
    assert drawn.finished_path == f"M0.00,{HEIGHT}v-40.00h298.50v40.00z"
    assert drawn.failed_path == f"M0.00,{HEIGHT}v-10.00h298.50v10.00z"
    assert drawn.line == "150.00,30.00"
    assert [(zone.x, zone.title) for zone in drawn.zones] == [
        ("0.00", "00:00: 7 enqueued, 4 finished, 1 failed"),
        ("300.00", "00:00: 0 enqueued, 0 finished, 0 failed"),
    ]
    assert chart([]).top == 1
    admit(client, queue, [payload() for _ in range(3)])
    assert sum(m.enqueued for m in inspector.last_hour(client, [queue])) == 3
