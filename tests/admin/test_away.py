"""The pages while the server is down, or accepts and never answers."""

import socket
import threading
import time
from dataclasses import replace

import pytest
from django.urls import reverse

from django_emq import connections, inspector
from tests.admin.yard import make_yard, url

PASSWORD = "t0psecret"


@pytest.fixture(params=["down", "silent"])
def away(request, settings, tmp_path):
    """Point the queue at a server that is not there, or at one that never answers."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    held = []

    def accept():
        while True:
            try:
                held.append(listener.accept()[0])
            except OSError:
                return

    if request.param == "silent":
        listener.listen(16)
        threading.Thread(target=accept, daemon=True).start()
    location = f"redis://:{PASSWORD}@127.0.0.1:{port}/0"
    settings.CACHES = {
        **settings.CACHES,
        "emq": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location},
    }
    yield
    listener.shutdown(socket.SHUT_RDWR) if request.param == "silent" else None
    listener.close()
    for one in held:
        one.close()
    connections.reset()


PAGES = [
    ("queue_changelist", {}),
    ("queue_change", {"queue": "mail"}),
    ("queue_set", {"queue": "mail", "name": "dead"}),
    ("queue_job", {"queue": "mail", "job_id": "JOB1"}),
    ("queue_edit", {"queue": "mail", "job_id": "JOB1"}),
    ("morgue_changelist", {}),
    ("worker_changelist", {}),
    ("server_changelist", {}),
]


ACTS = [
    ("queue_act", {"action": "remove", "set": "dead", "scope": "all"}),
    (
        "queue_act",
        {
            "action": "remove",
            "set": "dead",
            "ids": ["JOB1"],
            "confirm": "1",
            "state": '[[0, ""], null, 0, 0, 0, 0, 0, 0]',
        },
    ),
    ("queue_pause", {"to": "pause"}),
]


def test_B96_page_while_the_server_is_down(operator, away):
    """The index works, each page answers within 3 s that the server is not reachable.

    An action says that nothing was done. No text has the password.
    """
    page = operator.get(reverse("admin:index"))
    assert page.status_code == 200
    assert url("queue_changelist") in page.content.decode()
    for view, names in PAGES:
        begun = time.perf_counter()
        page = operator.get(url(view, **names))
        assert time.perf_counter() - begun < 3, view
        assert page.status_code == 503
        assert "is not reachable" in page.content.decode()
        assert PASSWORD not in page.content.decode()
    for view, fields in ACTS:
        begun = time.perf_counter()
        page = operator.post(url(view, queue="mail"), fields)
        assert time.perf_counter() - begun < 3, view
        assert page.status_code == 503
        assert "Nothing was done." in page.content.decode()
        assert PASSWORD not in page.content.decode()


def test_an_action_that_is_cut_off_half_way(operator, client, queue, monkeypatch):
    """What was done is said and written down; of the last step the page says it does not know."""
    from django.contrib.admin.models import LogEntry

    from django_emq.admin import actions
    from django_emq.exceptions import OutcomeUnknown

    yard = make_yard(client, queue)
    monkeypatch.setattr(actions, "BATCH", 3)
    whole = actions.ACTIONS["remove"].verb
    calls = []

    def cut(*args):
        calls.append(args)
        if len(calls) == 2:
            raise OutcomeUnknown("cut")
        return whole(*args)

    monkeypatch.setitem(actions.ACTIONS, "remove", replace(actions.ACTIONS["remove"], verb=cut))
    page = operator.post(
        url("queue_act", queue=queue),
        {
            "action": "remove",
            "set": "dead",
            "scope": "selected",
            "ids": yard.dead,
            "confirm": "yes",
            "state": '[[0, ""], null, 4, 0, 0, 0, 0, 0]',
        },
    )
    assert page.status_code == 503
    assert "3 jobs were done before. Of the last step it is not known" in page.content.decode()
    assert LogEntry.objects.get().change_message.startswith("3 jobs were removed.")
    assert inspector.counts(client, queue)["dead"] == 1


def test_the_pages_come_back_with_the_server(operator, client, yard, settings):
    """After a change of the settings the admin's own connection is made anew."""
    assert operator.get(url("queue_changelist")).status_code == 200
    good = settings.CACHES
    settings.CACHES = {
        **good,
        "emq": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": "redis://127.0.0.1:1/0",
        },
    }
    assert operator.get(url("queue_changelist")).status_code == 503
    settings.CACHES = good
    assert operator.get(url("queue_changelist")).status_code == 200


def test_a_server_that_is_loading_or_forbids(operator, redis, server, settings):
    """What the server itself says is told, with status 503."""
    redis.execute_command("ACL", "SETUSER", "guest", "on", "nopass", "~*", "+@all", "-smembers")
    settings.CACHES = {
        **settings.CACHES,
        "emq": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": server.url.replace("//", "//guest:any@", 1),
        },
    }
    try:
        page = operator.get(url("queue_changelist"))
        assert page.status_code == 503
        assert "refuses this user" in page.content.decode()
    finally:
        redis.execute_command("ACL", "DELUSER", "guest")
