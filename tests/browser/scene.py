"""Queues as they look on a busy day, for pictures and for the checks of every page."""

import json
import time

from django_emq import rules, scripts, ticker
from django_emq.admission import push
from django_emq.ids import mint
from django_emq.jobs import NewJob
from django_emq.keys import queue_keys
from django_emq.repeats import Entry
from tests.conformance import wire

TRACE = """Traceback (most recent call last):
  File "shop/mail.py", line 41, in send_receipt
    server.send(message)
  File "shop/smtp.py", line 112, in send
    raise ServerBusy(code, text)
shop.smtp.ServerBusy: 451 4.7.1 Try again later"""


def admit(client, queue, count, task, *, due="", fields=("max_attempts", 5), **kwargs):
    payloads = [
        json.dumps({"task": task, "args": [4000 + n], "kwargs": kwargs}) for n in range(count)
    ]
    jobs = [NewJob(mint(), one, due=due, fields=fields) for one in payloads]
    push(client, queue, jobs)
    return [job.id for job in jobs]


def claim(client, queue, count, worker="web-1-310-9f2c1a.1", lease_ms=120_000):
    return scripts.claim(
        client, queue, worker=worker, request=mint(), lease_ms=lease_ms, count=count
    ).jobs


def fail(client, queue, jobs, error, trace="", *, last=True):
    items = [(job.id, job.token, 42_000, error, trace) for job in jobs]
    scripts.retry(client, queue, items, max_attempts=1)


def play(client):
    """Fill a server; answers the id of a job that has been through a lot."""
    scripts.register(client, ["mail", "images", "reports"])
    hero = story(client)
    for queue, task, error, count in (
        ("mail", "shop.mail.send_receipt", "shop.smtp.ServerBusy: 451 4.7.1 Try again later", 7),
        ("mail", "shop.mail.send_newsletter", "KeyError: 'unsubscribe_url'", 12),
        (
            "images",
            "shop.images.thumbnail",
            "PIL.UnidentifiedImageError: cannot identify 'a.heic'",
            4,
        ),
    ):
        jobs = [
            NewJob(mint(), json.dumps({"task": task, "args": [n], "kwargs": {"language": "de"}}))
            for n in range(count)
        ]
        push(client, queue, jobs)
        fail(client, queue, claim(client, queue, count), error, TRACE)
    for queue, task, count in (
        ("mail", "shop.mail.send_receipt", 180),
        ("images", "shop.images.thumbnail", 26),
        ("reports", "shop.reports.monthly", 0),
    ):
        if count:
            admit(client, queue, count, task, language="de", token="s3cret")
    admit(client, "mail", 9, "shop.mail.remind", due="+5400000", customer=17)
    finished = claim(client, "images", 12)
    scripts.complete(
        client, "images", [(j.id, j.token, '{"width": 320}') for j in finished], keep_ms=3_600_000
    )
    held = claim(client, "mail", 4) + claim(client, "mail", 2, worker="web-2-88-c0ffee.2")
    claim(client, "images", 2)
    job, job_id = held[0], held[0].id.decode()
    wire.progress(client, "mail", job_id, job.token, "64")
    wire.log(client, "mail", job_id, job.token, "connected to smtp.example.org")
    wire.log(client, "mail", job_id, job.token, "sent 64 of 100")
    workers(client)
    schedules(client)
    hour(client)
    scripts.pause(client, "reports", by="anna", why="the warehouse is being moved")
    return hero


def story(client):
    """One job that failed, was given another life, lost its lease, and died."""
    about = {"language": "de", "api_key": "k-123"}
    (hero,) = admit(client, "mail", 1, "shop.mail.send_receipt", fields=(), **about)
    (first,) = claim(client, "mail", 1)
    fail(client, "mail", [first], "shop.smtp.ServerBusy: 451 4.7.1 Try again later", TRACE)
    scripts.reprocess(client, "mail", [hero], by="anna")
    (second,) = claim(client, "mail", 1, lease_ms=1)
    time.sleep(0.005)
    scripts.reap(client, "mail", max_stalls=3)
    (third,) = claim(client, "mail", 1, worker="web-2-88-c0ffee.2")
    scripts.complete(client, "mail", [(second.id, second.token, "")])
    fail(client, "mail", [third], "shop.smtp.ServerBusy: 451 4.7.1 Try again later", TRACE)
    return hero


def workers(client):
    facts = {
        "processes": 2, "threads": 4, "version": "0.1.0", "jobs": 18_204, "host": "shop",
    }  # fmt: skip
    for name, pid, queues, rss, state in (
        ("web-1-310-9f2c1a", 310, "mail images", 187, "running"),
        ("web-2-88-c0ffee", 88, "mail", 164, "quiet"),
        ("web-2-97-5eaf00", 97, "images", 158, "running"),
    ):
        more = {"name": name, "pid": pid, "queues": queues, "rss_mb": rss} | facts
        scripts.beat(client, name, ttl_ms=600_000, facts=more | {"state": state})
    scripts.control(client, "web-2-97-5eaf00", "stop", by="anna")


def schedules(client):
    """One that has run, one that waits, and one that somebody has switched off."""
    now = int(client.raw.time()[0]) * 1000
    for queue, name, task, times in (
        ("mail", "digest", "shop.mail.digest", {"cron": "0 6 * * mon-fri", "tz": "Europe/Berlin"}),
        ("images", "shop.images.tidy", "shop.images.tidy", {"every_ms": 600_000}),
        ("reports", "month end", "shop.reports.monthly", {"cron": "@monthly", "tz": "UTC"}),
    ):
        record = {
            "rule": name, "source": "code", "owner": "team shop", "misfire": "fire_once", **times,
            "template": json.dumps({"task": task}),
        }  # fmt: skip
        first = rules.read({key: str(value) for key, value in times.items()}).first(now)
        scripts.declare(client, queue, "code", [Entry(name, first, record)])
    job = NewJob(mint(), json.dumps({"task": "shop.images.tidy"}))
    tick = scripts.Tick("shop.images.tidy", None, 0, now, "shop.images.tidy")
    scripts.enqueue(client, "images", [job], request=job.id, producer="tick", tick=tick)
    ticker.switch(client, "reports", "month end", on=False, by="anna")


def hour(client):
    """Counters of an hour as a busy queue leaves them."""
    minute = int(client.raw.time()[0]) // 60
    for queue, size in (("mail", 120), ("images", 30)):
        keys = queue_keys(queue, client.prefix)
        for back in range(60):
            wave = abs((back * 7) % 40 - 20) / 20
            counts = {
                "enqueued": int(size * (0.6 + wave / 2)),
                "completed": int(size * (0.55 + abs((back * 5) % 30 - 15) / 30)),
                "failed": size // 6 if 18 < back < 26 else size // 60,
            }
            client.raw.hset(keys.minute(minute - back), mapping=counts)
        client.raw.hincrby(keys.metrics, "completed", 184_000)
