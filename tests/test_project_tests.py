"""Tests of a project that uses the queue: what its views enqueue, in a test that never commits."""

import pytest
from django.http import HttpResponse
from django.test import Client, TestCase
from django.urls import path

import django_emq
from django_emq.testing import Sandbox
from tests.helpers import point_at
from tests.probe import effects as tasks
from tests.probe.models import Payment

pytestmark = pytest.mark.django_db


def order(request):
    """A view that writes, and has a job done after its commit."""
    Payment.objects.create(order_id=0, amount=0)
    task = getattr(tasks, request.GET["task"])
    django_emq.enqueue_on_commit(task, *request.GET.getlist("arg"))
    return HttpResponse()


urlpatterns = [path("order/", order)]
PAY, FAIL = "/order/?task=pay&arg=1&arg=2", "/order/?task=fail&arg=boom"


def test_B109_projects_tests(settings, server, redis):
    """What is not captured does nothing, and asks no server.

    Captured it runs once, in the test, and what the task raises is raised there. Two tests at once
    do not see each other's jobs, and nothing is left on the server.
    """
    settings.ROOT_URLCONF = __name__
    browser = Client()
    point_at(settings, "redis://127.0.0.1:1/0")  # nobody is there
    browser.get(PAY)
    assert list(Payment.objects.values_list("order_id", flat=True)) == [0]

    point_at(settings, server.url)
    with Sandbox() as first:
        with TestCase.captureOnCommitCallbacks(execute=True):
            browser.get(PAY)
        with Sandbox() as second:
            assert second.waiting() == []
        first.assert_enqueued(tasks.pay, args=["1", "2"], count=1)
        assert [run.verb for run in first.run_until_empty()] == ["complete"]
        assert list(Payment.objects.values_list("order_id", flat=True)) == [0, 0, 1]

        with first.commits():
            browser.get(FAIL)
        with pytest.raises(ValueError, match="boom"):
            first.run_until_empty()
        assert len(first.waiting()) == 1
    assert redis.keys() == []
