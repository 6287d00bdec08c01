"""How quickly the admin's pages answer when the queues are large."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

from django.core.management import call_command
from django.db import connection
from django.test import Client as Browser
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from redis.connection import AbstractConnection

from django_emq import connections, inspector, scripts
from django_emq.ids import mint
from django_emq.keys import Keys, queue_keys

from .drains import Figures
from .lab import Lab, lab
from .sizes import Sizes

CHUNK = 2_000  # jobs in one call of the loader
QUEUES = 10  # beside the large one
WORKERS = 10
HELD = 100
ERRORS = ("shop.smtp.ServerBusy: 451 4.7.1 Try again later", "KeyError: 'unsubscribe_url'")
TRACE = "Traceback (most recent call last):\n" + '  File "shop/mail.py", line 41, in send\n' * 8

# Rows as `enqueue` and `retry` leave them, without the millions of checks.
LOADER = """
local jobs, state, dead, payload, tail, err, trace = unpack(ARGV, 1, 7)
local time = redis.call('TIME')
local now = time[1] * 1000
for i = 8, #ARGV do
  local id = ARGV[i]
  local row = {'state', state, 'attempts', dead == '1' and '5' or '0',
    'payload', payload .. i .. tail}
  if dead == '1' then
    for _, part in ipairs({'failures', '5', 'max_attempts', '5', 'last_error', err,
      'traceback', trace, 'finished_at', now, 'worker', 'web-1-310-9f2c1a.1'}) do
      row[#row + 1] = part
    end
    redis.call('XADD', KEYS[2], 'MAXLEN', '~', 10000, '*',
      'event', 'died', 'id', id, 'token', '5', 'note', err)
  end
  redis.call('HSET', jobs .. id, unpack(row))
  redis.call('ZADD', KEYS[1], dead == '1' and now or 0, id)
end
"""


def admin(sizes: Sizes) -> Figures:
    """Milliseconds of each page, and the most commands and queries that one needs."""
    figures: Figures = {}
    calls = 0
    with lab(1) as bench, signed_in(bench.folder) as browser:
        visits = prepare(bench, browser, sizes)
        for name, visit in visits.items():
            calls = max(calls, _calls(visit))  # and the templates are compiled
            figures[f"admin_{name}_ms"] = median(_ms(visit) for _ in range(sizes.looks))
    return {"admin": max(figures.values()), "admin_calls": calls, **figures}


@contextmanager
def signed_in(folder: Path) -> Iterator[Browser]:
    """A browser of a superuser, on a database of its own."""
    settings = connection.settings_dict
    before = settings["NAME"]
    connection.close()
    settings["NAME"] = str(folder / "db.sqlite3")
    try:
        call_command("migrate", verbosity=0)
        from django.contrib.auth.models import User

        browser = Browser()
        with override_settings(DEBUG=False):
            browser.force_login(User.objects.create_superuser("anna"))
            yield browser
    finally:
        connection.close()
        settings["NAME"] = before


def prepare(bench: Lab, browser: Browser, sizes: Sizes) -> dict[str, Callable[[], None]]:
    """Fill the server; answers what visits each page."""
    keys = queue_keys(bench.queue)
    names = [f"queue-{number}" for number in range(QUEUES)]
    scripts.register(connections.client(), [bench.queue, *names])
    for name in (bench.queue, *names):
        _hour(bench, queue_keys(name))
    for half in range(2):
        _load(bench, keys, "dead", sizes.dead // 2, error=ERRORS[half])
    _load(bench, keys, "pending", sizes.many)
    _work(bench, names)
    job_id = (
        inspector.page(connections.client(), bench.queue, "dead", size=1, newest=True).rows[0].id
    )

    def get(view: str, query: str = "", **names: str) -> Callable[[], None]:
        address = reverse(f"admin:django_emq_{view}", kwargs=names)
        return lambda: _check(browser.get(address + query))

    def ask() -> None:
        form = {"action": "requeue", "set": "dead", "scope": "all"}
        address = reverse("admin:django_emq_queue_act", kwargs={"queue": bench.queue})
        _check(browser.post(address, form))

    at = {"queue": bench.queue}
    deep = f"?p={sizes.many // 100}"
    return {
        "queues": get("queue_changelist"),
        "pending": get("queue_set", name="pending", **at),
        "deep": get("queue_set", deep, name="pending", **at),
        "dead": get("queue_set", name="dead", **at),
        "filter": get("queue_set", "?error=KeyError", name="dead", **at),
        "job": get("queue_job", job_id=job_id, **at),
        "confirm": ask,
        "morgue": get("morgue_changelist"),
        "workers": get("worker_changelist"),
        "server": get("server_changelist"),
    }


def _check(page: Any) -> None:
    if page.status_code != 200:
        raise RuntimeError(f"{page.request['PATH_INFO']} answers with {page.status_code}.")


def _ms(visit: Callable[[], None]) -> float:
    start = time.perf_counter()
    visit()
    return (time.perf_counter() - start) * 1000


def _calls(visit: Callable[[], None]) -> int:
    """What is sent to the queue's server, a pipeline as one, and to the database."""
    send = AbstractConnection.send_packed_command
    counted = mock.patch.object(AbstractConnection, "send_packed_command", autospec=True)
    with CaptureQueriesContext(connection) as queries, counted as sent:
        sent.side_effect = send
        visit()
    return int(sent.call_count) + len(queries)


def _load(bench: Lab, keys: Keys, state: str, count: int, *, error: str = "") -> None:
    """Put so many jobs into a set, past all checks."""
    loader = bench.redis.register_script(LOADER)
    task = '{"task":"shop.mail.send_receipt","args":['
    tail = '],"kwargs":{"language":"de","token":"s3cret"}}'
    options = (keys.jobs, state, int(state == "dead"), task, tail, error, TRACE + error)
    for start in range(0, count, CHUNK):
        ids = (mint() for _ in range(min(CHUNK, count - start)))
        loader(keys=[getattr(keys, state), keys.trail], args=[*options, *ids])


def _hour(bench: Lab, keys: Keys) -> None:
    """Counters as a busy queue leaves them."""
    minute = int(bench.redis.time()[0]) // 60
    with bench.redis.pipeline(transaction=False) as pipeline:
        for back in range(60):
            counts: dict[Any, Any] = {
                "enqueued": 120 + back,
                "completed": 110 + back,
                "failed": back % 7,
            }
            pipeline.hset(keys.minute(minute - back), mapping=counts)
        pipeline.execute()


def _work(bench: Lab, names: list[str]) -> None:
    """Workers that are there, and one that holds jobs."""
    client = connections.client()
    for number in range(WORKERS):
        facts = {"queues": " ".join([bench.queue, *names]), "state": "running", "rss_mb": 90}
        scripts.beat(client, f"web-{number}", ttl_ms=3_600_000, facts=facts)
    scripts.claim(
        client, bench.queue, worker="web-1.1", request=mint(), lease_ms=3_600_000, count=HELD
    )
