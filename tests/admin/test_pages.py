"""Each page says what is on the server."""

import pytest

from tests.admin.yard import TASK, url


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
    assert TASK in page.content.decode()


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
