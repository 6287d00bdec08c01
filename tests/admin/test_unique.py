"""Unique keys on the page of a job."""

from django_emq import inspector, scripts
from tests.admin.test_actions import act
from tests.admin.yard import texts, url
from tests.conformance import wire
from tests.helpers import QUEUE
from tests.probe import unique


def test_the_key_and_its_holder(operator, client):
    """The page says who holds the key; a dead job's leads to the one that has it now."""

    def page(job_id):
        return operator.get(url("queue_job", queue=QUEUE, job_id=job_id)).content.decode()

    first = unique.sync.enqueue(1)
    unique.sync.enqueue(1)
    said = page(first.id)
    assert "held by this job" in said
    assert "1 duplicate was refused: this job holds the key." in said
    assert inspector.row(client, QUEUE, first.id)["unique"][:12] in said
    scripts.cancel(client, QUEUE, [first.id])
    assert "held by nobody" in page(first.id)
    second = unique.sync.enqueue(1)
    assert url("queue_job", queue=QUEUE, job_id=second.id) in page(first.id)


def test_another_life_is_refused_in_words(operator, client):
    """The button says why nothing happened."""
    first = unique.sync.enqueue(1)
    scripts.cancel(client, QUEUE, [first.id])
    unique.sync.enqueue(1)
    page = act(operator, QUEUE, "requeue", "dead", scope="selected", ids=[first.id])
    (told,) = texts(page)
    assert told.endswith("1 was refused: another job holds its unique key.")
    assert list(wire.members(client, QUEUE, "dead")) == [first.id]
