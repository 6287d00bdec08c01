"""The read plane: walks along sets that change, and "why" in words."""

import json
import re

import pytest
from django.core.management import CommandError, call_command
from hypothesis import given, settings
from hypothesis import strategies as st

from django_emq import inspector, scripts
from django_emq.exceptions import JobGone, UnknownSet
from django_emq.ids import mint
from django_emq.inspector import Filter, Mark
from django_emq.inspector.why import EVENTS
from tests.admin.yard import TASK, admit, kill, make_yard, payload
from tests.processes import wait_until


def why(client, queue, job_id):
    return inspector.why(client, queue, job_id)


def told(client, queue, job_id):
    return " ".join(why(client, queue, job_id).reasons)


# -- walks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("newest", [False, True])
@pytest.mark.parametrize("step", [1, 3, 50])
def test_follow_meets_each_entry_once(client, redis, queue, newest, step):
    """Entries with equal scores too, in the order of the set."""
    key = f"emq:{{{queue}}}:dead"
    redis.zadd(key, {f"id{n:03}": n // 4 for n in range(50)})
    seen, mark = [], None
    while marks := inspector.follow(client, queue, "dead", mark, size=step, newest=newest):
        seen += [one.id for one in marks]
        mark = marks[-1]
    assert seen == [one.decode() for one in redis.zrange(key, 0, -1, desc=newest)]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_follow_finds_its_place_again(data):
    """Whatever leaves or joins the set between two steps: what stays is met once, in order."""
    from django_emq import connections

    client, queue = connections.client(), f"q-{mint()[-12:]}"
    key = f"emq:{{{queue}}}:pending"
    there = {f"id{n:03}": data.draw(st.integers(0, 3)) for n in range(20)}
    client.raw.zadd(key, there)
    stays = set(there)
    seen, mark = [], None
    while marks := inspector.follow(client, queue, "pending", mark, size=3):
        seen += [one.id for one in marks]
        mark = marks[-1]
        gone = data.draw(st.sets(st.sampled_from(sorted(there)), max_size=4))
        client.raw.zrem(key, *gone, "none")
        stays -= gone
        for extra in range(data.draw(st.integers(0, 2))):
            client.raw.zadd(key, {f"new{len(seen)}{extra}": data.draw(st.integers(0, 3))})
    client.raw.delete(key)
    assert len(seen) == len(set(seen))
    assert stays <= set(seen)
    order = [one for one in seen if one in there]
    assert order == sorted(order, key=lambda one: (there[one], one))


def test_a_mark_between_entries(client, redis, queue):
    """A place need not be an entry."""
    redis.zadd(f"emq:{{{queue}}}:dead", {"a": 1, "b": 2, "c": 3})
    after = inspector.follow(client, queue, "dead", Mark(2, "aa"))
    assert [one.id for one in after] == ["b", "c"]
    before = inspector.follow(client, queue, "dead", Mark(2, "aa"), newest=True)
    assert [one.id for one in before] == ["a"]
    assert inspector.follow(client, queue, "dead", Mark(9, "")) == []
    assert inspector.follow(client, queue, "dead", Mark(0, ""), newest=True) == []


def test_find_stops_at_a_full_page_and_goes_on(client, queue):
    ids = kill(client, queue, [payload(TASK if n % 2 else "other", n) for n in range(20)])
    first = inspector.find(client, queue, "dead", Filter(task="probe"), size=4)
    assert [row.id for row in first.rows] == ids[1:8:2]
    rest = inspector.find(client, queue, "dead", Filter(task="probe"), after=first.next)
    assert [row.id for row in rest.rows] == ids[9::2]
    assert rest.next is None


def test_a_page_of_a_set_that_is_none(client, queue):
    with pytest.raises(UnknownSet, match="There is no set 'wake'"):
        inspector.page(client, queue, "wake")


def test_a_large_payload_is_not_read_for_a_list(client, queue):
    (job_id,) = admit(client, queue, [payload(TASK, "x" * 100_000)])
    (row,) = inspector.page(client, queue, "pending").rows
    assert (row.payload, row.payload_size > 100_000, row.task) == (None, True, "")
    assert inspector.job(client, queue, job_id).row.task == TASK


# -- why --------------------------------------------------------------------------------------


def test_why_a_pending_job_waits(client, queue):
    """The jobs before it, no worker, a pause with who and why, a limit."""
    first, second = admit(client, queue, [payload(), payload()])
    assert f"No worker serves '{queue}'" in told(client, queue, first)
    assert "the next to be claimed" in told(client, queue, first)
    assert "1 job is before it" in told(client, queue, second)

    scripts.beat(client, "w-1", ttl_ms=60_000, facts={"queues": f"other {queue}"})
    assert "No worker" not in told(client, queue, first)

    scripts.pause(client, queue, by="anna", why="the disk is full")
    reason = why(client, queue, first).reasons[0]
    assert reason.startswith(f"Queue '{queue}' has been paused by anna since 20")
    assert reason.endswith("UTC. the disk is full")
    scripts.resume(client, queue, by="anna")

    client.raw.hset(f"emq:{{{queue}}}:meta", "concurrency", 1)
    scripts.claim(client, queue, worker="w", request="1", lease_ms=9000, count=1)
    assert "runs 1 jobs at once, and its limit is 1" in told(client, queue, second)


def test_why_a_scheduled_job_waits(client, queue):
    (plain,) = admit(client, queue, [payload()], due="+42000")
    reasons = why(client, queue, plain).reasons
    assert reasons[0].startswith("It is due in 42 s")
    assert "It was enqueued for that time." in reasons

    (failed,) = admit(client, queue, [payload()])
    (job,) = scripts.claim(client, queue, worker="w", request="1", lease_ms=9000).jobs
    error = (job.id, job.token, 60_000, "ValueError: boom", "")
    scripts.retry(client, queue, [error], max_attempts=5)
    words = told(client, queue, failed)
    assert "It waits to be tried again after an error: ValueError: boom" in words
    assert "It has failed 1 time in 1 runs." in words

    (put_off,) = admit(client, queue, [payload()])
    (job,) = scripts.claim(client, queue, worker="w", request="2", lease_ms=9000).jobs
    scripts.snooze(client, queue, [(job.id, job.token, "+60000")])
    assert "Its task has put it off." in told(client, queue, put_off)

    (due,) = admit(client, queue, [payload()], due="+1")
    wait_until(lambda: "It has been due for" in told(client, queue, due))


def test_why_an_active_job_runs(client, queue):
    (job_id,) = admit(client, queue, [payload()])
    scripts.claim(client, queue, worker="w-7.1", request="1", lease_ms=12_000)
    words = told(client, queue, job_id)
    assert "It is held by w-7.1 with token 1; the lease ends in 12 s." in words
    assert "No worker of this name has given a sign of life" in words
    scripts.beat(client, "w-7", ttl_ms=60_000, facts={"queues": queue})
    assert "sign of life" not in told(client, queue, job_id)

    scripts.extend(client, queue, [(job_id, 1)], lease_ms=0)
    wait_until(lambda: "but the lease lapsed" in told(client, queue, job_id))


def test_why_the_others(client, redis, queue):
    yard = make_yard(client, queue)
    assert "It has been in the morgue since 20" in told(client, queue, yard.dead[0])
    assert "ValueError: boom" in told(client, queue, yard.dead[0])
    assert "It was completed at 20" in told(client, queue, yard.done[0])
    assert "kept for another 10 min" in told(client, queue, yard.done[0])
    redis.zrem(f"emq:{{{queue}}}:pending", yard.pending[0])
    assert "it is in no set" in told(client, queue, yard.pending[0])
    scripts.remove(client, queue, [yard.pending[1]], by="anna")
    gone = why(client, queue, yard.pending[1])
    assert gone.state == "absent"
    assert "It is no longer there" in " ".join(gone.reasons)
    assert "was removed by anna" in " ".join(gone.history)
    with pytest.raises(JobGone):
        why(client, queue, "JOB404")


def test_why_a_settlement_was_refused(client, queue):
    """Yours was token 1; the lease lapsed and was swept; the row has 2."""
    (job_id,) = admit(client, queue, [payload()])
    scripts.claim(client, queue, worker="w-7.1", request="1", lease_ms=1)
    wait_until(lambda: scripts.reap(client, queue, max_stalls=3).returned)
    scripts.claim(client, queue, worker="w-8.1", request="2", lease_ms=9000)
    scripts.complete(client, queue, [(job_id, 1, "")])
    (refusal,) = why(client, queue, job_id).refusals
    assert "came with token 1, the row has 2: complete token mismatch" in refusal
    assert "was taken back: lease of w-7.1 lapsed, stall 1" in refusal


def test_every_operator_act_has_its_words(client, queue):
    """No entry of the trail is shown as its bare name."""
    yard = make_yard(client, queue)
    scripts.requeue(client, queue, yard.active, by="anna")
    scripts.cancel(client, queue, yard.pending[:1], by="anna")
    scripts.reprocess(client, queue, yard.dead[:1], by="anna")
    scripts.remove(client, queue, yard.dead[1:2], by="anna")
    scripts.update(client, queue, yard.dead[2], payload(), by="anna")
    scripts.drain(client, queue, "schedule", by="anna")
    scripts.pause(client, queue, by="anna", why="because")
    scripts.resume(client, queue, by="anna")
    entries = inspector.trail(client, queue)
    acts = [inspector.words(one) for one in entries if one.by]
    assert acts == [
        "the queue was resumed by anna",
        "the queue was paused by anna. because",
        "2 jobs of 'schedule' were removed by anna",
        "got another payload from anna",
        "was removed by anna",
        "was given another life by anna; its token stays 1",
        "was cancelled by anna; its token is now 0",
        "was requeued by anna; its token is now 2",
    ]


# -- the command ------------------------------------------------------------------------------


def test_emq_why(client, queue, capsys):
    (job_id,) = admit(client, queue, [payload()])
    call_command("emq_why", job_id)
    out = capsys.readouterr().out
    assert out.startswith(f"Job {job_id} of queue {queue} is pending.\n")
    assert "No worker serves" in out

    call_command("emq_why", job_id, "--json")
    facts = json.loads(capsys.readouterr().out)
    assert (facts["queue"], facts["id"], facts["state"]) == (queue, job_id, "pending")


def test_emq_why_of_a_job_that_is_gone(client, queue, capsys):
    (job_id,) = admit(client, queue, [payload()])
    scripts.claim(client, queue, worker="w-7.1", request="1", lease_ms=1)
    wait_until(lambda: scripts.reap(client, queue, max_stalls=3).returned)
    scripts.remove(client, queue, [job_id], by="anna")
    with pytest.raises(CommandError, match="--queue"):
        call_command("emq_why", job_id)
    call_command("emq_why", job_id, "--queue", queue)
    out = capsys.readouterr().out
    assert "What happened:" in out
    assert "was removed by anna." in out
    with pytest.raises(CommandError, match="no job"):
        call_command("emq_why", "JOB404", "--queue", queue)


def test_spans():
    """A unit is used from its double on, with a digit more where the figure is small."""
    times = (0.42, 9.94, 9.99, 12, -98, 200, 5371, 7200, 90_000, 200_000, 1e9)
    assert [inspector.span(seconds) for seconds in times] == [
        "0.4 s", "9.9 s", "10 s", "12 s", "98 s", "3 min", "90 min", "2.0 h", "25 h", "2 d",
        "11574 d",
    ]  # fmt: skip


def test_each_event_of_the_trail_has_words():
    """Those that the scripts write, and no other."""
    sources = "".join(script.source.decode() for script in scripts.SCRIPTS.values())
    assert set(EVENTS) == set(re.findall(r"(?:note\(|'event', )'(\w+)'", sources))
