"""What the buttons do, on stale pages too, and what is written down about it."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.contrib.admin.models import CHANGE, DELETION, LogEntry

from django_emq import inspector, scripts
from django_emq.admin import actions
from tests.admin.yard import TASK, admit, kill, make_yard, payload, texts, url
from tests.conformance.wire import books_balance
from tests.probe.verdicts import fail_fast
from tests.processes import Worker, wait_until


def fields_of(page):
    """The hidden fields of the form in the content of a page."""
    content = page.content.decode().split('id="content"')[1]
    found = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', content)
    fields = {}
    for name, value in found:
        if name != "csrfmiddlewaretoken":
            fields.setdefault(name, []).append(value.replace("&quot;", '"'))
    return fields


def act(browser, queue, action, name, **fields):
    """Press a button, confirm, and go on until the end; the last page."""
    target = url("queue_act", queue=queue)
    page = browser.post(target, {"action": action, "set": name, **fields})
    while page.status_code == 200 and "confirm" not in fields:
        page = browser.post(target, fields_of(page) | {"confirm": "yes"}, follow=True)
        if page.redirect_chain:
            break
    return page


def sizes(client, queue):
    return inspector.counts(client, queue)


def test_requeue_selected(operator, client, yard):
    page = act(operator, yard.queue, "requeue", "dead", scope="selected", ids=yard.dead[:3])
    assert texts(page) == ["3 jobs were requeued."]
    assert sizes(client, yard.queue) == {
        "pending": 6, "active": 1, "schedule": 2, "dead": 1, "done": 1,
    }  # fmt: skip
    (entry,) = LogEntry.objects.all()
    assert (entry.user.username, entry.object_repr, entry.action_flag) == (
        "anna", yard.queue, CHANGE,
    )  # fmt: skip
    assert entry.change_message == f"3 jobs were requeued. (dead: {', '.join(yard.dead[:3])})"
    assert entry.get_admin_url() == url("queue_change", queue=yard.queue)


def test_the_trail_names_the_operator(operator, client, yard):
    act(operator, yard.queue, "requeue", "dead", scope="selected", ids=yard.dead[:1])
    entry = inspector.trail(client, yard.queue)[0]
    assert (entry.event, entry.id, entry.by) == ("reprocessed", yard.dead[0], "anna")


@pytest.mark.parametrize(
    ("action", "name", "goes_to"),
    [
        ("requeue", "dead", "pending"),
        ("requeue", "schedule", "pending"),
        ("requeue", "active", "pending"),
        ("cancel", "pending", "dead"),
        ("cancel", "schedule", "dead"),
        ("cancel", "active", "dead"),
    ],
)
def test_all_of_a_set(operator, client, yard, action, name, goes_to):
    before = sizes(client, yard.queue)
    act(operator, yard.queue, action, name, scope="all")
    moved = before[name]
    assert sizes(client, yard.queue) == before | {name: 0, goes_to: before[goes_to] + moved}


def test_B94_clear_leaves_nothing_behind_and_takes_not_too_much(operator, client, redis, queue):
    """Each clears exactly its set, rows included; the running job ends; the other queue keeps 2."""
    yard, other = make_yard(client, queue), f"{queue}-other"
    admit(client, other, [payload(), payload()])
    rows = f"emq:{{{queue}}}:job:*"
    counts = sizes(client, queue)
    assert counts == {"pending": 3, "active": 1, "schedule": 2, "dead": 4, "done": 1}
    for name in ("pending", "schedule", "dead"):
        before = set(redis.scan_iter(rows))
        page = act(operator, queue, "remove", name, scope="all")
        gone = {f"emq:{{{queue}}}:job:{one}".encode() for one in getattr(yard, name)}
        assert set(redis.scan_iter(rows)) == before - gone
        assert f"{counts[name]} jobs were removed." in texts(page)[0]
        counts[name] = 0
        assert sizes(client, queue) == counts
        assert LogEntry.objects.first().action_flag == DELETION
    assert scripts.complete(client, queue, [(yard.active[0], 1, "")]) == [1]
    assert sizes(client, other)["pending"] == 2


@pytest.mark.parametrize("name", ["done", "active"])
def test_other_sets_are_cleared_likewise(operator, client, redis, queue, name):
    """Their rows go with them, other sets and queues keep theirs."""
    yard = make_yard(client, queue)
    other = make_yard(client, f"{queue}-other")
    rows = set(redis.scan_iter(f"emq:*{queue}*:job:*"))
    before, others = sizes(client, queue), sizes(client, other.queue)
    act(operator, queue, "remove", name, scope="all")
    gone = {f"emq:{{{queue}}}:job:{one}".encode() for one in getattr(yard, name)}
    assert sizes(client, queue) == before | {name: 0}
    assert sizes(client, other.queue) == others
    assert set(redis.scan_iter(f"emq:*{queue}*:job:*")) == rows - gone


@pytest.mark.parametrize("action", ["requeue", "cancel", "remove"])
def test_a_run_that_goes_on_is_refused(operator, client, yard, action):
    """The token of a held job moves first: its run cannot settle it any more."""
    (held,) = yard.active
    act(operator, yard.queue, action, "active", scope="selected", ids=[held])
    before = sizes(client, yard.queue)
    (verdict,) = scripts.complete(client, yard.queue, [(held, 1, "")])
    assert verdict == 0 or "EMQSTALE" in repr(verdict) or "token" in str(verdict).lower()
    assert sizes(client, yard.queue) == before


def test_B92_selection_has_changed_before_the_click(operator, client, yard, transactional_db):
    """Of three ticked jobs one was deleted and one requeued and finished by a colleague.

    A form that is sent twice at once makes one entry; an id that never existed, a message.
    """
    one, two, three, _ = yard.dead
    scripts.remove(client, yard.queue, [one], by="bert")
    scripts.reprocess(client, yard.queue, [two], by="bert")
    claims = scripts.claim(
        client, yard.queue, worker="w", request="stale", lease_ms=9000, count=9
    ).jobs
    done = next(job for job in claims if job.id.decode() == two)
    scripts.complete(client, yard.queue, [(done.id, done.token, "")])

    page = act(operator, yard.queue, "requeue", "dead", scope="selected", ids=[one, two, three])

    assert texts(page) == ["1 job was requeued. 2 are no longer dead."]
    assert inspector.state(client, yard.queue, three) == "pending"
    assert inspector.state(client, yard.queue, one) == "absent"
    assert inspector.state(client, yard.queue, two) == "absent"

    ready = sizes(client, yard.queue)["pending"]
    target = url("queue_act", queue=yard.queue)
    page = operator.post(target, {"action": "requeue", "set": "dead", "ids": yard.dead[3:]})
    sent = fields_of(page) | {"confirm": "yes"}
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: _post(operator, target, sent), range(2)))
    assert [answer.status_code for answer in answers] == [302, 302]
    assert sizes(client, yard.queue)["pending"] == ready + 1
    reprocessed = [e for e in inspector.trail(client, yard.queue) if e.event == "reprocessed"]
    assert [entry.id for entry in reprocessed].count(yard.dead[3]) == 1

    never = ["JOB0000000000000000000000"]
    page = act(operator, yard.queue, "requeue", "dead", scope="selected", ids=never)
    assert texts(page)[-1] == "0 jobs were requeued. 1 is no longer dead."
    books_balance(client, yard.queue)


def test_remove_leaves_alone_what_has_left_the_page(operator, client, yard):
    """A dead job that was requeued meanwhile is not deleted from where it is now."""
    scripts.reprocess(client, yard.queue, yard.dead[:2], by="bert")
    page = act(operator, yard.queue, "remove", "dead", scope="selected", ids=yard.dead)
    assert texts(page) == ["2 jobs were removed. 2 are no longer dead."]
    assert inspector.state(client, yard.queue, yard.dead[0]) == "pending"


def test_run_now_does_not_take_a_job_from_its_worker(operator, client, queue):
    """A scheduled job that fell due and was claimed keeps its token."""
    (job_id,) = admit(client, queue, [payload()], due="+1")
    wait_until(
        lambda: scripts.claim(client, queue, worker="w", request="due", lease_ms=9000, count=1).jobs
    )
    page = act(operator, queue, "requeue", "schedule", scope="selected", ids=[job_id])
    assert texts(page) == ["0 jobs were requeued. 1 is no longer scheduled."]
    assert scripts.complete(client, queue, [(job_id, 1, "")]) == [1]


def _post(browser, target, sent):
    from django.db import connections

    try:
        return browser.post(target, sent)
    finally:
        connections.close_all()


def test_nothing_selected(operator, client, yard):
    before = sizes(client, yard.queue)
    page = operator.post(
        url("queue_act", queue=yard.queue), {"action": "remove", "set": "dead"}, follow=True
    )
    assert texts(page) == ["No job was selected. Nothing was done."]
    assert sizes(client, yard.queue) == before


def test_filtered(operator, client, queue):
    """Only what matches, all over the set, is acted on; the page says how many before."""
    kill(client, queue, [payload(TASK, n) for n in range(5)], error="KeyError: 'a'")
    kill(client, queue, [payload("shop.other", n) for n in range(3)], error="KeyError: 'a'")
    kill(client, queue, [payload(TASK, n) for n in range(2)], error="ValueError: b")
    wanted = {"scope": "all", "task": "probe", "error": "keyerror"}
    page = operator.post(
        url("queue_act", queue=queue), {"action": "remove", "set": "dead", **wanted}
    )
    assert "5 jobs?" in page.content.decode()
    page = act(operator, queue, "remove", "dead", **wanted)
    assert texts(page) == ["5 jobs were removed."]
    assert sizes(client, queue)["dead"] == 5
    assert "task probe, error keyerror" in LogEntry.objects.get().change_message


def test_a_group_of_the_morgue(operator, client, queue):
    """The morgue's form takes the task and the class of the error exactly."""
    kill(client, queue, [payload(TASK, n) for n in range(2)], error="ValueError: b")
    kill(client, queue, [payload(f"{TASK}_more", n) for n in range(2)], error="ValueError: b")
    kill(client, queue, [payload(TASK, 9)], error="ValueErrors: b")
    text = operator.get(url("morgue_changelist")).content.decode()
    assert text.count('name="error" value="ValueError"') == 2
    page = act(
        operator, queue, "requeue", "dead",
        scope="all", task=TASK, error="ValueError", exact="1", next="morgue",
    )  # fmt: skip
    assert texts(page) == ["2 jobs were requeued."]
    assert page.redirect_chain[-1][0] == url("morgue_changelist")
    assert sizes(client, queue)["dead"] == 3


def test_many_jobs_take_several_requests(operator, client, queue, monkeypatch):
    """Each request does a bounded part; what comes after the confirmation is left alone."""
    monkeypatch.setattr(actions, "SECONDS", 0.0)
    monkeypatch.setattr(actions, "BATCH", 20)
    kill(client, queue, [payload(TASK, n) for n in range(50)])
    target = url("queue_act", queue=queue)
    page = operator.post(target, {"action": "requeue", "set": "dead", "scope": "all"})
    assert "50 jobs?" in page.content.decode()

    page = operator.post(target, fields_of(page) | {"confirm": "yes"})
    assert "20 of 50 jobs of the set looked at. 20 jobs were requeued." in page.content.decode()
    scripts.claim(client, queue, worker="w", request="them", lease_ms=9000, count=100)
    (late,) = kill(client, queue, [payload(TASK, "late")])
    seen = []
    while page.status_code == 200:
        page = operator.post(target, fields_of(page) | {"confirm": "yes"})
        seen.append(sizes(client, queue)["dead"])

    assert page.status_code == 302
    assert seen[0] == 11
    assert inspector.page(client, queue, "dead").rows[0].id == late
    assert sizes(client, queue)["dead"] == 1
    assert sum(int(e.change_message.split()[0]) for e in LogEntry.objects.all()) == 50


def test_a_filtered_walk_passes_over_what_does_not_match(operator, client, queue, monkeypatch):
    """Ranks shift under the walk; every match is met once all the same."""
    monkeypatch.setattr(actions, "SECONDS", 0.0)
    monkeypatch.setattr(actions, "BATCH", 7)
    payloads = [payload(TASK if n % 3 else "shop.other", n) for n in range(60)]
    kill(client, queue, payloads)
    page = act(operator, queue, "remove", "dead", scope="all", task="probe")
    assert texts(page) == ["40 jobs were removed."]
    rows = inspector.page(client, queue, "dead", size=100).rows
    assert {row.task for row in rows} == {"shop.other"}
    assert len(rows) == 20


def test_B93_revived_job_has_all_its_tries_again(operator, client, queue, probe):
    """Three failures, another life, three failures: six runs, and the page says so."""
    job = fail_fast.using(queue=queue).enqueue()

    def deaths():
        return sum(entry.event == "died" for entry in inspector.trail(client, queue))

    with Worker(queue) as worker:
        worker.wait_ready()
        wait_until(lambda: deaths() == 1)
        assert len(probe.marks()) == 3
        act(operator, queue, "requeue", "dead", scope="selected", ids=[job.id], next="job")
        wait_until(lambda: deaths() == 2)
        assert len(probe.marks()) == 6
        worker.terminate()
        worker.wait()

    page = operator.get(url("queue_job", queue=queue, job_id=job.id))
    assert page.context["row"].token == 6
    told = [words for _, words, _ in page.context["timeline"]]
    assert sum("went to the morgue: ValueError: no luck" in words for words in told) == 2
    assert sum("was given another life by anna" in words for words in told) == 1
    assert "6 runs" in " ".join(page.context["why"].reasons)


def test_a_job_that_leaves_between_look_and_act(operator, client, yard, monkeypatch):
    """B92: whatever happens before the script runs, it acts on the set of the page or not at all.

    A colleague's act falls into the request, right before ours reaches the server.
    """
    (held,), (due, _) = yard.active, yard.schedule

    def meanwhile(verb, act):
        honest = getattr(scripts, verb)

        def late(*args, **options):
            monkeypatch.setattr(scripts, verb, honest)
            act()
            return honest(*args, **options)

        monkeypatch.setattr(scripts, verb, late)

    honest_requeue = scripts.requeue
    meanwhile("cancel", lambda: honest_requeue(client, yard.queue, [held], by="bert"))
    page = act(operator, yard.queue, "cancel", "active", scope="selected", ids=[held])
    assert texts(page) == ["0 jobs were cancelled and are in the morgue. 1 is no longer held."]
    meanwhile("remove", lambda: scripts.requeue(client, yard.queue, [due], by="bert"))
    page = act(operator, yard.queue, "remove", "schedule", scope="selected", ids=[due])
    assert texts(page) == ["0 jobs were removed. 1 is no longer scheduled."]
    assert [inspector.state(client, yard.queue, one) for one in (held, due)] == ["pending"] * 2


# -- pause, edit ------------------------------------------------------------------------------


def test_pause_and_resume(operator, client, yard):
    target = url("queue_pause", queue=yard.queue)
    page = operator.post(target, {"to": "pause", "why": "the disk is full"}, follow=True)
    assert texts(page) == [f"Queue '{yard.queue}' is paused."]
    assert "Paused by anna since" in page.content.decode()
    assert "the disk is full" in page.content.decode()
    page = operator.post(target, {"to": "pause"}, follow=True)
    assert texts(page) == ["It was paused before."]
    page = operator.post(target, {"to": "resume", "next": "queues"}, follow=True)
    assert page.redirect_chain[-1][0] == url("queue_changelist")
    assert not inspector.stats(client, yard.queue).paused
    page = operator.post(target, {"to": "resume"}, follow=True)
    assert texts(page) == ["It was not paused."]
    assert LogEntry.objects.count() == 2


def edit(browser, target, **fields):
    """Open the editor, change fields and save; the page that follows."""
    was = browser.get(target).context["form"].initial["was"]
    return browser.post(target, {"was": was, **fields}, follow=True)


@pytest.mark.parametrize("name", ["pending", "schedule", "dead"])
def test_edit(operator, client, yard, name):
    job_id = getattr(yard, name)[0]
    target = url("queue_edit", queue=yard.queue, job_id=job_id)
    page = edit(operator, target, args='[1, {"a": 2}]', kwargs='{"b": 3}')
    assert texts(page) == [f"The payload of job {job_id} was changed."]
    row = inspector.row(client, yard.queue, job_id)
    assert json.loads(row["payload"]) == {"task": TASK, "args": [1, {"a": 2}], "kwargs": {"b": 3}}
    assert LogEntry.objects.count() == 1
    assert inspector.trail(client, yard.queue)[0].by == "anna"


def test_secrets_survive_an_edit_unseen(operator, client, queue):
    """A value that is hidden is neither shown nor lost; one that is typed replaces it."""
    body = payload(TASK, {"deep": {"token": "t0p"}}, password="hush", Secret="psst", to="a")
    (job_id,) = kill(client, queue, [body])
    target = url("queue_edit", queue=queue, job_id=job_id)
    page = operator.get(target)
    for secret in ("t0p", "hush", "psst"):
        assert secret not in page.content.decode()
        assert (
            secret
            not in operator.get(url("queue_job", queue=queue, job_id=job_id)).content.decode()
        )
        assert (
            secret not in operator.get(url("queue_set", queue=queue, name="dead")).content.decode()
        )
    form = page.context["form"]
    kwargs = form.initial["kwargs"] | {"to": "b", "Secret": "new"}
    edit(operator, target, args=json.dumps(form.initial["args"]), kwargs=json.dumps(kwargs))
    stored = json.loads(inspector.row(client, queue, job_id)["payload"])
    assert stored["args"] == [{"deep": {"token": "t0p"}}]
    assert stored["kwargs"] == {"password": "hush", "Secret": "new", "to": "b"}


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ("[1", "{}", "Enter a valid JSON."),
        ('{"a": 1}', "{}", "Give a JSON list."),
        ("[]", "[1]", "Give a JSON object."),
        ("[" * 250 + "]" * 250, "{}", "nested deeper"),
        (json.dumps(["x" * 2_000_000]), "{}", "MAX_PAYLOAD"),
    ],
)
def test_an_edit_that_the_queue_would_not_take(operator, client, yard, args, kwargs, words):
    job_id = yard.pending[0]
    before = inspector.row(client, yard.queue, job_id)
    target = url("queue_edit", queue=yard.queue, job_id=job_id)
    page = edit(operator, target, args=args, kwargs=kwargs)
    assert page.status_code == 200
    assert words in page.content.decode()
    assert inspector.row(client, yard.queue, job_id) == before


@pytest.mark.parametrize("was", [None, "0" * 40])
def test_an_edit_of_what_has_changed(operator, client, yard, was):
    """Two editors are open: the second save is refused, shows what was typed, and saves nothing."""
    job_id = yard.dead[0]
    target = url("queue_edit", queue=yard.queue, job_id=job_id)
    opened = operator.get(target).context["form"].initial["was"]
    scripts.update(client, yard.queue, job_id, payload(TASK, "bert's"), by="bert")
    before = inspector.row(client, yard.queue, job_id)
    page = operator.post(target, {"args": '["typed"]', "kwargs": "{}", "was": was or opened})
    assert page.status_code == 200
    assert "Somebody has changed the arguments" in page.content.decode()
    assert "typed" in page.content.decode()
    assert operator.post(target, {"args": "[9]", "kwargs": "{}"}).status_code == 200
    assert inspector.row(client, yard.queue, job_id) == before
    assert LogEntry.objects.count() == 0


def test_an_edit_that_is_overtaken_on_its_way(operator, client, yard, monkeypatch):
    """Between our look and our script somebody saves: the script itself compares."""
    job_id = yard.dead[0]
    honest = scripts.update

    def late(*args, **options):
        honest(client, yard.queue, job_id, payload(TASK, "bert's"), by="bert")
        return honest(*args, **options)

    monkeypatch.setattr(scripts, "update", late)
    target = url("queue_edit", queue=yard.queue, job_id=job_id)
    page = edit(operator, target, args="[9]", kwargs="{}")
    assert texts(page) == ["Nothing was changed: Its payload has been changed since it was read"]
    stored = json.loads(inspector.row(client, yard.queue, job_id)["payload"])
    assert stored["args"] == ["bert's"]


@pytest.mark.parametrize("name", ["active", "done"])
def test_a_job_that_cannot_be_edited(operator, client, yard, name):
    job_id = getattr(yard, name)[0]
    before = inspector.row(client, yard.queue, job_id)
    target = url("queue_edit", queue=yard.queue, job_id=job_id)
    page = operator.post(target, {"args": "[9]", "kwargs": "{}"}, follow=True)
    assert texts(page) == ["Only waiting and dead jobs can be edited."]
    assert inspector.row(client, yard.queue, job_id) == before


def test_a_row_in_no_set_can_be_removed(operator, client, redis, yard):
    """A row that no worker would ever find has a page that says so, and a button."""
    lost = yard.pending[0]
    redis.zrem(f"emq:{{{yard.queue}}}:pending", lost)
    page = operator.get(url("queue_job", queue=yard.queue, job_id=lost))
    assert "in no set" in page.content.decode()
    page = act(operator, yard.queue, "remove", "lost", scope="selected", ids=[lost, yard.dead[0]])
    assert texts(page) == ["1 job was removed. 1 is no longer lost."]
    assert inspector.state(client, yard.queue, lost) == "absent"
    assert inspector.state(client, yard.queue, yard.dead[0]) == "dead"


def test_a_damaged_row_is_told(operator, client, redis, yard):
    """A dead entry without a row cannot be requeued; it can be removed."""
    redis.delete(f"emq:{{{yard.queue}}}:job:{yard.dead[0]}")
    page = act(operator, yard.queue, "requeue", "dead", scope="all")
    assert texts(page) == ["3 jobs were requeued. 1 was refused: its row is damaged."]
    page = act(operator, yard.queue, "remove", "dead", scope="all")
    assert texts(page) == ["1 job was removed."]
