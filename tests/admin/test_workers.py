"""The page of the workers, and its buttons: quiet, resume, stop."""

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client as Browser

from django_emq import inspector, scripts
from tests.admin.yard import ACTS, VIEWS, texts, url
from tests.operator_cases import everything

TOLD = {
    "quiet": "Worker 'w-7' was asked to take no more jobs.",
    "resume": "Worker 'w-7' was asked to take jobs again.",
    "stop": "Worker 'w-7' was asked to stop.",
}


def beat(client, state="running", worker="w-7", **facts):
    facts = {"queues": "mail", "pid": 7, "state": state, "jobs": 3, **facts}
    return scripts.beat(client, worker, ttl_ms=60_000, facts=facts)


def buttons(page):
    ((_, _, offered),) = page.context["workers"]
    return [button["word"] for button in offered]


@pytest.mark.parametrize("word", scripts.WORDS)
def test_a_word_is_asked_for_first(operator, client, word):
    """The first POST says what will happen, the confirmed one leaves the word and is logged."""
    beat(client)
    target = url("worker_control", worker="w-7")
    page = operator.post(target, {"word": word})
    assert page.status_code == 200
    assert "obeys at its next beat: within 10 seconds" in page.content.decode()
    assert beat(client) == ("", "")
    assert LogEntry.objects.count() == 0

    page = operator.post(target, {"word": word, "confirm": "yes"}, follow=True)

    assert page.redirect_chain == [(url("worker_changelist"), 302)]
    assert texts(page) == [TOLD[word]]
    assert beat(client) == (word, "anna")
    (entry,) = LogEntry.objects.all()
    assert (entry.user.username, entry.object_repr) == ("anna", "w-7")
    assert entry.change_message == TOLD[word]
    assert entry.content_type.model == "worker"


@pytest.mark.parametrize(
    ("state", "offered"),
    [("running", ["quiet", "stop"]), ("quiet", ["resume", "stop"]), ("stopping", []), ("", [])],
)
def test_what_a_worker_is_offered(operator, client, state, offered):
    """What means something in its state."""
    beat(client, state)
    page = operator.get(url("worker_changelist"))
    assert buttons(page) == offered
    assert f">{state or '?'}</span>" in page.content.decode()


def test_what_was_asked_and_is_not_done_yet(operator, client):
    """The page says so, with the name of who asked, and does not offer it again."""
    beat(client)
    scripts.control(client, "w-7", "quiet", by="<bert>")
    page = operator.get(url("worker_changelist"))
    assert "&lt;bert&gt; has asked it to take no more jobs" in page.content.decode()
    assert buttons(page) == ["stop"]
    beat(client, "quiet")
    page = operator.get(url("worker_changelist"))
    assert "has asked it" not in page.content.decode()
    assert buttons(page) == ["resume", "stop"]


def test_the_memory_of_a_worker(operator, client):
    """As it has told it; a worker that tells none has no such line."""
    beat(client, rss_mb=123)
    assert "123 MB" in operator.get(url("worker_changelist")).content.decode()
    beat(client)
    assert " MB" not in operator.get(url("worker_changelist")).content.decode()


def test_a_worker_that_has_left(operator, client):
    """Nothing is left for it, and nothing is written down."""
    target = url("worker_control", worker="w-7")
    page = operator.post(target, {"word": "stop", "confirm": "yes"}, follow=True)
    assert texts(page) == ["There is no worker 'w-7' any more. Nothing was done."]
    assert everything(client) == {}
    assert LogEntry.objects.count() == 0


@pytest.mark.parametrize("fields", [{}, {"word": ""}, {"word": "kill"}, {"confirm": "yes"}])
def test_a_form_that_is_none_of_ours(operator, client, fields):
    beat(client)
    before = everything(client)
    assert operator.post(url("worker_control", worker="w-7"), fields).status_code == 400
    assert everything(client) == before


def test_control_needs_its_right(account, client):
    """Who may look only sees no buttons, and cannot press them either."""
    beat(client)
    before = everything(client)
    target, sure = url("worker_control", worker="w-7"), {"word": "stop", "confirm": "yes"}
    assert "/login/" in Browser().post(target, sure)["Location"]
    others = [one for one in ACTS if one != "control_worker"]
    viewer = account(*VIEWS, *others, name="viewer")
    assert viewer.post(target, sure).status_code == 403
    assert 'name="word"' not in viewer.get(url("worker_changelist")).content.decode()
    assert account("control_worker", name="blind").post(target, sure).status_code == 403
    anna = account("view_worker", "control_worker")
    assert anna.get(target, sure).status_code == 405
    strict = Browser(enforce_csrf_checks=True)
    strict.cookies = anna.cookies
    assert strict.post(target, sure).status_code == 403
    assert everything(client) == before
    assert anna.post(target, sure).status_code == 302
    assert inspector.workers(client)[0].asked == "stop"


def test_a_name_with_markup(operator, client):
    """It is text in the page, in the question and in the address."""
    name = '"><img src=x onerror=alert(1)>/..'
    beat(client, worker=name)
    target = url("worker_control", worker=name)
    for page in (
        operator.get(url("worker_changelist")),
        operator.post(target, {"word": "stop"}),
        operator.post(target, {"word": "stop", "confirm": "yes"}, follow=True),
    ):
        assert page.status_code == 200
        assert "<img src=x" not in page.content.decode()
    assert inspector.workers(client)[0].asked == "stop"
