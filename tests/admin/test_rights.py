"""Who may do what: each page and action, by account and by method."""

import re

import pytest
from django.test import Client as Browser

from django_emq import inspector
from tests.admin.yard import ACTS, VIEWS, make_yard, url

PAGES = {
    "queue_changelist": "view_queue",
    "queue_change": "view_queue",
    "queue_set": "view_queue",
    "queue_job": "view_queue",
    "morgue_changelist": "view_morgue",
    "worker_changelist": "view_worker",
    "server_changelist": "view_server",
    "schedule_changelist": "view_schedule",
}
ACTIONS = [
    ("requeue", "dead", "requeue_job"),
    ("requeue", "schedule", "requeue_job"),
    ("requeue", "active", "requeue_job"),
    ("cancel", "pending", "cancel_job"),
    ("cancel", "schedule", "cancel_job"),
    ("cancel", "active", "cancel_job"),
    ("remove", "pending", "remove_job"),
    ("remove", "active", "remove_job"),
    ("remove", "schedule", "remove_job"),
    ("remove", "dead", "remove_job"),
    ("remove", "done", "remove_job"),
]


def address(view, yard):
    names = {"queue": yard.queue, "name": "dead", "job_id": yard.dead[0]}
    wanted = {"queue_change": 1, "queue_set": 2, "queue_job": 0}.get(view)
    if wanted is None:
        return url(view)
    keys = {1: ["queue"], 2: ["queue", "name"], 0: ["queue", "job_id"]}[wanted]
    return url(view, **{key: names[key] for key in keys})


def form(action, name, yard, **more):
    return {"action": action, "set": name, "scope": "selected", "ids": getattr(yard, name), **more}


def confirmed(action, name, yard):
    state = '[[0, ""], null, 0, 0, 0, 0, 0, 0]'
    return form(action, name, yard, confirm="yes", state=state)


@pytest.fixture
def whole(redis):
    """What is on the server, to be the same afterwards."""

    def read():
        keys = sorted(key for key in redis.scan_iter() if b":claims:" not in key)
        # A large hash is dumped in another order after the server has moved its table.
        return {
            key: redis.hgetall(key) if redis.type(key) == b"hash" else redis.dump(key)
            for key in keys
        }

    return read


@pytest.mark.parametrize("view", PAGES)
def test_a_page_needs_the_right_to_view(account, yard, view):
    """Staff without the right gets 403, with it 200; who is not signed in goes to the login."""
    address_ = address(view, yard)
    assert "/login/" in Browser().get(address_)["Location"]
    assert account(name="customer", staff=False).get(address_).status_code == 302
    others = [one for one in (*VIEWS, *ACTS) if one != PAGES[view]]
    assert account(*others, name="other").get(address_).status_code == 403
    assert account(PAGES[view], name="viewer").get(address_).status_code == 200


@pytest.mark.parametrize("view", PAGES)
def test_a_page_is_only_read(operator, yard, view, whole):
    """POST to a page is refused and changes nothing."""
    before = whole()
    assert operator.post(address(view, yard), {"action": "remove"}).status_code == 405
    assert whole() == before


@pytest.mark.parametrize(("action", "name", "permission"), ACTIONS)
def test_B87_actions_by_link_without_token_without_right(
    account, yard, whole, action, name, permission
):
    """The four accounts: only the one with the right for this very action acts.

    A link (GET) never does, nor a form without its token; who may only look sees no buttons.
    """
    target = url("queue_act", queue=yard.queue)
    sure = confirmed(action, name, yard)
    before = whole()
    others = [one for one in ACTS if one != permission]
    assert "/login/" in Browser().post(target, sure)["Location"]
    assert account(name="none").post(target, sure).status_code == 403
    assert account(*VIEWS, *others, name="viewer").post(target, sure).status_code == 403
    assert account(permission, name="blind").post(target, sure).status_code == 403
    looker = account(*VIEWS, name="looker")
    assert looker.post(target, sure).status_code == 403
    shown = looker.get(url("queue_set", queue=yard.queue, name=name)).content.decode()
    assert 'name="action"' not in shown
    assert whole() == before

    anna = account("view_queue", permission)
    assert anna.get(target).status_code == 405
    assert anna.get(target, sure).status_code == 405
    anna.handler.enforce_csrf_checks = True
    assert anna.post(target, sure).status_code == 403
    anna.handler.enforce_csrf_checks = False
    assert anna.post(target, form(action, name, yard)).status_code == 200
    assert whole() == before
    assert anna.post(target, sure).status_code == 302
    assert whole() != before


def test_pause_needs_its_right(account, yard, client):
    target = url("queue_pause", queue=yard.queue)
    others = [one for one in ACTS if one != "pause_queue"]
    assert "/login/" in Browser().post(target)["Location"]
    assert account(*VIEWS, *others, name="viewer").post(target).status_code == 403
    anna = account("view_queue", "pause_queue")
    assert anna.get(target).status_code == 405
    assert not inspector.stats(client, yard.queue).paused
    assert anna.post(target, {"to": "pause"}).status_code == 302
    assert inspector.stats(client, yard.queue).paused


def test_edit_needs_its_right(account, yard, client):
    target = url("queue_edit", queue=yard.queue, job_id=yard.dead[0])
    others = [one for one in ACTS if one != "edit_job"]
    before = inspector.row(client, yard.queue, yard.dead[0])
    assert "/login/" in Browser().get(target)["Location"]
    viewer = account(*VIEWS, *others, name="viewer")
    assert viewer.get(target).status_code == 403
    assert viewer.post(target, {"args": "[5]", "kwargs": "{}"}).status_code == 403
    assert inspector.row(client, yard.queue, yard.dead[0]) == before


@pytest.mark.parametrize("name", ["pending", "active", "schedule", "dead", "done"])
def test_who_may_not_act_sees_no_buttons(account, yard, name):
    """A viewer finds no form but those that search."""
    viewer = account(*VIEWS)
    for address_ in (
        url("queue_changelist"),
        url("queue_set", queue=yard.queue, name=name),
        url("queue_job", queue=yard.queue, job_id=getattr(yard, name)[0]),
        url("morgue_changelist"),
    ):
        text = viewer.get(address_).content.decode()
        forms = re.findall(r"<form[^>]*method=\"post\"[^>]*>", text)
        assert [one for one in forms if "logout" not in one and "emq-jobs" not in one] == []
        assert 'name="action"' not in text
        assert 'name="ids"' not in text


def test_a_form_without_its_token_is_refused(client, db, yard, whole):
    """Another site cannot press our buttons, not even where the project has no CSRF middleware."""
    from django.contrib.auth.models import User

    browser = Browser(enforce_csrf_checks=True)
    browser.force_login(User.objects.create_superuser("root", password="pw"))
    before = whole()
    for target, fields in (
        (url("queue_act", queue=yard.queue), confirmed("remove", "dead", yard)),
        (url("queue_pause", queue=yard.queue), {"to": "pause"}),
        (
            url("queue_edit", queue=yard.queue, job_id=yard.dead[0]),
            {"args": "[]", "kwargs": "{}"},
        ),
    ):
        assert browser.post(target, fields).status_code == 403
    assert whole() == before


def test_without_the_csrf_middleware_too(settings, client, db, yard, whole):
    settings.MIDDLEWARE = [one for one in settings.MIDDLEWARE if "Csrf" not in one]
    test_a_form_without_its_token_is_refused(client, db, yard, whole)


def test_the_index_lists_what_one_may_see(account, yard):
    """The admin's menu shows a page to those who may open it."""
    from django.urls import reverse

    index = reverse("admin:index")
    assert b"Job queue" not in account(name="none").get(index).content
    text = account("view_morgue", name="digger").get(index).content.decode()
    assert url("morgue_changelist") in text
    assert url("queue_changelist") not in text


def test_jobs_of_another_queue_stay_out_of_reach(operator, client, queue, whole):
    """An id is looked for in the queue of the address only."""
    mine, other = make_yard(client, queue), make_yard(client, f"{queue}-other")
    before = whole()
    page = operator.get(url("queue_job", queue=queue, job_id=other.dead[0]))
    assert page.status_code == 404
    sure = confirmed("remove", "dead", mine) | {"ids": other.dead}
    answer = operator.post(url("queue_act", queue=queue), sure, follow=True)
    assert "0 jobs were removed. 4 are no longer dead." in answer.content.decode()
    assert whole() == before


@pytest.mark.parametrize(
    "ids", [["JOB0000000000000000000000"], ["<b>"], ["{dead}:logs"], ["x" * 10_000], ["\x00", ""]]
)
def test_forged_ids_change_nothing(operator, client, yard, whole, ids):
    """What is no member of the set is left alone, also where a key of that name exists."""
    key = f"emq:{{{yard.queue}}}:job:{yard.dead[0]}:logs"
    client.raw.rpush(key, "a line")
    ids = [one.format(dead=yard.dead[0]) for one in ids]
    before = whole()
    for action in ("requeue", "remove"):
        sure = confirmed(action, "dead", yard) | {"ids": ids}
        answer = operator.post(url("queue_act", queue=yard.queue), sure, follow=True)
        assert answer.status_code == 200
    assert whole() == before


@pytest.mark.parametrize(
    "fields",
    [
        {"action": "obliterate"},
        {"set": "wake"},
        {"set": "lost", "action": "requeue"},
        {"action": ""},
        {"confirm": "yes", "state": ""},
        {"confirm": "yes", "state": "[1]"},
        {"confirm": "yes", "state": '["a", null, 0, 0, 0, 0, 0, 0]'},
        {"ids": [f"x{n}" for n in range(600)]},
    ],
)
def test_a_form_that_is_none_of_ours(operator, yard, whole, fields):
    before = whole()
    sent = form("remove", "dead", yard) | fields
    assert operator.post(url("queue_act", queue=yard.queue), sent).status_code == 400
    assert whole() == before


@pytest.mark.parametrize("name", ["no-such-queue", "a b", "<b>", "emq", "x" * 200])
def test_a_queue_that_is_not_there(operator, yard, name):
    assert operator.get(url("queue_change", queue=name)).status_code == 404
    assert operator.post(url("queue_pause", queue=name), {"to": "pause"}).status_code == 404
    sent = form("remove", "dead", yard)
    assert operator.post(url("queue_act", queue=name), sent).status_code == 404
