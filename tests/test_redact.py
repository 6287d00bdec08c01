"""REDACT and sensitive_variables: what they name is in no error, traceback, log or output."""

import io
import json
from functools import wraps

import pytest
from django.core.management import call_command
from django.views.decorators import debug
from django.views.decorators.debug import sensitive_post_parameters, sensitive_variables

from django_emq import inspector, registry
from django_emq.admin.arguments import restore, shown
from django_emq.jobs import Call
from django_emq.keys import queue_keys
from django_emq.redact import MASK, eraser, sensitive
from django_emq.registry import Task
from tests.conformance.wire import row
from tests.helpers import burst
from tests.probe import verdicts

SECRET = "s3cr=t & 'quoted'\u00e9"
TASK = "tests.probe.verdicts.leak"


def body(*args: object, **kwargs: object) -> bytes:
    return json.dumps({"task": TASK, "args": args, "kwargs": kwargs}).encode()


# Arguments, a text, and what is left of it.
CASES = [
    (body("x", "hunter2"), "hunter2, no: hunter22", f"{MASK}, no: {MASK}2"),
    (body("x", PASSWORD="hunter2"), "'hunter2'", f"'{MASK}'"),
    (body("hunter2", "other"), "hunter2", "hunter2"),
    (body("x", options={"deep": [{"Token": ["a-b-c", 12]}]}), "a-b-c 12 120 x12", f"{MASK} {MASK} "
     "120 x12"),
    (body("x", "12"), "12 of 112 and 12.", f"{MASK} of 112 and {MASK}."),
    (body("x", None, {"password": True, "secret": ""}), "None True x", "None True x"),
    (body("x", "abcd", {"password": "abcdef"}), "abcdef abcd", f"{MASK} {MASK}"),
    (body("x", "a.c*e"), "a.c*e abcde", f"{MASK} abcde"),
    (body("x", SECRET), repr(SECRET), f'"{MASK}"'),
    (body("x", SECRET), json.dumps(SECRET), f'"{MASK}"'),
    (body("x", "p/w d?"), "q=p%2Fw%20d%3F p/w%20d%3F p%2Fw+d%3F", f"q={MASK} {MASK} {MASK}"),
    (body("x", "line\nbreak"), "line\nbreak 'line\\nbreak'", f"{MASK} '{MASK}'"),
    (body("x", 1234.5), "1234.5", MASK),
    (b'{"task": "gone", "kwargs": {"token": "hunter2"}}', "hunter2", MASK),
    (b'{"task": "gone", "args": ["hunter2"]}', "hunter2", "hunter2"),
    (b"no payload", "hunter2", "hunter2"),
]  # fmt: skip


@pytest.mark.parametrize(("payload", "text", "left"), CASES)
def test_secrets_are_taken_out_of_a_text(payload, text, left):
    assert eraser(payload)(text) == left


def through(func):
    """Another decorator, between the task and Django's."""

    @wraps(func)
    def wrapper(*args, **kwargs):
        return func(*args, **kwargs)

    return wrapper


def make(*decorators, asynchronous=False):
    """The name of a task that was made just now and has never run."""

    def plain(pin, who):
        raise AssertionError("it is not to be run")

    async def coroutine(pin, who):
        raise AssertionError("it is not to be run")

    func = coroutine if asynchronous else plain
    for decorator in decorators:
        func = decorator(func)
    name = f"made-{len(registry.names())}"
    registry.register(Task(func, name))
    return name


@pytest.mark.parametrize(
    ("decorators", "names"),
    [
        ((sensitive_variables("pin"),), ("pin",)),
        ((sensitive_variables("pin", "who"), through), ("pin", "who")),
        ((sensitive_variables("pin"), through, through), ("pin",)),
        ((through, sensitive_variables("who"), through), ("who",)),
        ((sensitive_variables(),), "__ALL__"),
        ((through,), ()),
        ((), ()),
        ((sensitive_post_parameters("pin"),), ()),
    ],
)
def test_names_of_a_task_are_known_before_it_runs(forget, decorators, names):
    """Django itself notes them when the function is called."""
    assert sensitive(make(*decorators)) == names


@pytest.mark.parametrize(("given", "names"), [(("pin",), ("pin",)), ((), "__ALL__")])
def test_names_of_an_async_task_are_known_too(forget, given, names):
    decorators = (sensitive_variables(*given),)
    try:
        assert sensitive(make(*decorators, asynchronous=True)) == names
    finally:
        debug.coroutine_functions_to_sensitive_variables.clear()
    assert sensitive(make(asynchronous=True)) == ()


def test_pages_hide_what_a_task_names(forget):
    """By position or name, at any depth, and put back by an edit that leaves it alone."""
    name = make(sensitive_variables("pin"))
    call = Call(name, ["1234", {"Pin": "5", "x": 6}], {"who": "anna", "pin": [1]})
    hidden = Call(name, [MASK, {"Pin": MASK, "x": 6}], {"who": "anna", "pin": MASK})
    assert shown(call, ()) == hidden
    assert shown(call, ["who"]).kwargs == {"who": MASK, "pin": MASK}
    assert restore(hidden.args, call.args) == call.args
    name = make(sensitive_variables())
    assert shown(Call(name, [1, None], {"a": {}}), ()) == Call(name, [MASK, MASK], {"a": MASK})


@pytest.fixture
def forget():
    """Tasks that a test makes are gone after it."""
    before = dict(registry._tasks)
    yield
    registry._tasks.clear()
    registry._tasks.update(before)


def test_redact_is_a_setting(settings):
    settings.EMQ = {**settings.EMQ, "REDACT": ["Kind"]}
    assert eraser(body("hunter2", "open"))("hunter2 open") == f"{MASK} open"
    settings.EMQ = {**settings.EMQ, "REDACT": []}
    assert eraser(body("hunter2", "open"))("hunter2 open") == "hunter2 open"


def everything_but_payloads(redis, queue) -> bytes:
    """All that the server keeps of a queue."""
    found = []
    for key in redis.scan_iter(f"{queue_keys(queue).base}*"):
        if redis.type(key) == b"hash":
            fields = redis.hgetall(key)
            fields.pop(b"payload", None)
            found += fields.values()
        elif redis.type(key) == b"stream":
            found += [value for _, entry in redis.xrange(key) for value in entry.values()]
    return b"\n".join(found)


def test_no_secret_leaves_a_worker(client, redis, queue):
    """Not in the row, the trail, the log, nor what the commands print."""
    secret = "correct horse"
    jobs = [
        verdicts.leak.using(queue=queue).enqueue(kind, secret, {"token": secret})
        for kind in ("raise", "bury", "retry", "notes", "cause")
    ]
    jobs.append(verdicts.leak_without_backoff.using(queue=queue).enqueue(password=secret))
    named = [
        task.using(queue=queue).enqueue(pin=secret, who="anna")
        for task in (verdicts.leak_pin, verdicts.aleak_pin, verdicts.leak_all)
    ]
    log = burst(queue, "-v", "2")
    kept = everything_but_payloads(redis, queue)
    assert kept.count(MASK.encode()) >= len(jobs)
    assert secret.encode() not in kept
    assert secret not in log
    assert MASK in log
    assert "could not be worked out" in log
    for job in named[:2]:
        assert row(client, queue, job.id)["last_error"] == f"ValueError: anna has {MASK}"
    assert row(client, queue, named[2].id)["last_error"] == f"ValueError: {MASK} has {MASK}"
    out = io.StringIO()
    for job in (*jobs, *named):
        call_command("emq_why", job.id, stdout=out)
        assert inspector.state(client, queue, job.id) in ("dead", "scheduled")
    call_command("emq_stats", stdout=out)
    assert secret not in out.getvalue()
    assert MASK in out.getvalue()


def test_without_secrets_errors_are_whole(client, queue):
    """Nothing is taken out where nothing is secret."""
    job = verdicts.leak.using(queue=queue).enqueue("raise", "", {"colour": "red"})
    burst(queue)
    about = row(client, queue, job.id)
    assert about["last_error"] == "ValueError: cannot sign in with '' and {'colour': 'red'}"
    assert about["traceback"].startswith("Traceback (most recent call last):\n")
