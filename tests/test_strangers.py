"""Rows that a stranger wrote: they harm neither a worker, nor what commands and pages show."""

import contextlib
import io
import json
import unicodedata

import pytest
from django.core.management import call_command

from django_emq import inspector, scripts
from django_emq.ids import mint
from django_emq.keys import queue_keys, reserve_keys
from django_emq.management.commands._base import plain
from tests.helpers import burst
from tests.probe import tasks

MARK = "tests.probe.tasks.mark"
EVIL = "\x1b[2J\x1b]0;owned\x07\r\n\x00\u202egpj.exe\u2028\x9b31m\u200f"
DEEP = (200, 480, 900)  # around what Python reads, and what it can walk after that
DICT = '{"a":'


def call(*args: object, task: str = MARK, **kwargs: object) -> str:
    return json.dumps({"task": task, "args": args, "kwargs": kwargs}, ensure_ascii=False)


# Payloads that are JSON of a task, or look like it.
PAYLOADS = {
    "large": call("x" * 10_000_000, no=1),
    **{f"{n} lists": f'{{"task": "{MARK}", "args": [{"[" * n}{"]" * n}, 2]}}' for n in DEEP},
    **{f"{n} dicts": f'{{"task": "{MARK}", "args": [{DICT * n}1{"}" * n}, 2]}}' for n in DEEP},
    "deep and broken": "[" * 100_000,
    "odd names": call(1, __proto__={"admin": True}, __class__="x", **{EVIL: EVIL}),
    "task of a module": call("echo owned", task="os.system"),
    "task with dunder": call(task="tests.probe.tasks.mark.__globals__"),
    "odd task": call(task=EVIL),
    "task is a list": '{"task": ["tests.probe.tasks.mark"]}',
    "args are a text": '{"task": "tests.probe.tasks.mark", "args": "abc"}',
    "list": "[]",
    "number": "1e999999",
    "NaN": '{"task": NaN}',
    "pickle": "\x80\x04\x95",
    "text": "no JSON " + EVIL,
}  # fmt: skip
OTHERS: dict[str, bytes] = {
    "latin-1": '{"task": "größe"}'.encode("latin-1"),
    "utf-16": call(1).encode("utf-16"),
    "bytes": bytes(range(256)),
}


def plant(redis, queue: str) -> list[str]:
    """Enter each of them, as somebody would who knows where rows are."""
    keys = queue_keys(queue)
    ids = []
    for payload in (*(text.encode("utf-8", "surrogatepass") for text in PAYLOADS.values()),
                    *OTHERS.values()):  # fmt: skip
        job_id = mint()
        row = {"state": "pending", "attempts": "0", "payload": payload, "priority": EVIL}
        redis.hset(keys.job(job_id), mapping=row)
        redis.zadd(keys.pending, {job_id: 0})
        ids.append(job_id)
    for kind, job_id in (
        ("string", mint()),
        ("list", mint()),
        ("id", f"x{EVIL}"),
        ("none", mint()),
    ):
        if kind == "string":
            redis.set(keys.job(job_id), EVIL)
        elif kind == "list":
            redis.rpush(keys.job(job_id), EVIL)
        elif kind == "id":
            redis.hset(keys.job(job_id), mapping={"state": EVIL, "attempts": EVIL, "payload": EVIL})
        redis.zadd(keys.pending, {job_id: 0})
        ids.append(job_id)
    workers = reserve_keys().workers
    redis.zadd(workers, {EVIL: 2_000_000_000_000})
    redis.hset(reserve_keys().worker(EVIL), mapping={"queues": EVIL, "state": EVIL, EVIL: EVIL})
    redis.hset(keys.meta, mapping={"concurrency": EVIL, EVIL: EVIL})
    redis.hset(keys.metrics, mapping={"claimed": EVIL, EVIL: EVIL})
    redis.sadd(reserve_keys().queues, EVIL, queue)
    redis.set(EVIL, EVIL)
    return ids


def is_tame(text: str) -> bool:
    """Whether nothing in it steers a terminal."""
    return not [c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Zl")]


def printed(*command: str) -> str:
    out = io.StringIO()
    with contextlib.suppress(SystemExit):
        call_command(*command, stdout=out, stderr=out)
    return out.getvalue()


@pytest.fixture
def planted(client, redis, queue):
    scripts.register(client, [queue])
    return plant(redis, queue)


def test_a_worker_goes_on(client, redis, queue, planted, probe):
    """Each stranger's job ends in the morgue or is tried again, and the others are run."""
    jobs = [tasks.mark.using(queue=queue).enqueue(n) for n in range(5)]
    log = burst(queue, "--threads", "2")
    assert "unexpected error" not in log
    assert sorted(probe.marks()) == [str(n) for n in range(5)]
    for job in jobs:
        assert inspector.state(client, queue, job.id) == "absent"
    counts = inspector.counts(client, queue)
    assert (counts["pending"], counts["active"]) == (0, 0)
    assert counts["dead"] + counts["schedule"] == len(planted)
    assert "owned" not in "".join(probe.marks())


def commands(queue: str, ids: list[str]) -> list[tuple[str, ...]]:
    return [
        ("emq_stats",),
        ("emq_stats", "--json"),
        ("emq_fsck",),
        ("emq_fsck", "--json"),
        ("emq_doctor",),
        *(("emq_why", one, "--queue", queue) for one in ids if one.isalnum()),
        ("emq_fsck", "--repair"),
    ]


@pytest.mark.parametrize("ran", [False, True])
def test_output_is_tame(client, redis, queue, planted, ran):
    """What the commands print has no control characters and forges no line."""
    if ran:
        burst(queue)
        scripts.pause(client, queue, by=EVIL, why=EVIL)
    for command in commands(queue, planted):
        text = printed(*command)
        assert text, command
        assert is_tame(text), (command, text[:2000])
        assert not any(line.lstrip().startswith("gpj.exe") for line in text.splitlines())
        assert len(text) < 100_000, command
    assert list(inspector.audit(client)) == []


@pytest.mark.parametrize("ran", [False, True])
def test_pages_stand(client, queue, planted, db, ran):
    """Lists and each job's own page, before and after a worker has seen them."""
    from django.contrib.auth.models import User
    from django.test import Client as Browser

    from tests.admin.yard import url

    if ran:
        burst(queue)
    browser = Browser()
    browser.force_login(User.objects.create_superuser("anna"))
    for view in ("queue_changelist", "morgue_changelist", "worker_changelist", "server_changelist"):
        assert browser.get(url(view)).status_code == 200, view
    for name in inspector.SETS:
        assert browser.get(url("queue_set", queue=queue, name=name)).status_code == 200
    for one in planted:
        page = browser.get(url("queue_job", queue=queue, job_id=one))
        assert page.status_code == 200, one
        assert len(page.content) < 1_000_000, one
        edit = browser.get(url("queue_edit", queue=queue, job_id=one))
        assert edit.status_code in (200, 302), one


def test_plain_text_is_left_alone():
    """Letters of all languages are no danger; what is invisible or steers is written out."""
    assert plain("größe 日本 עברית ok") == "größe 日本 עברית ok"
    assert plain("a\x1b[2J\u202e\n\x00\x85") == "a\\x1b[2J\\u202e\\n\\x00\\x85"
    assert is_tame(plain(EVIL))
