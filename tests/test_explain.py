"""emq_explain: what is said of a task is what its jobs get."""

import json
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.views.decorators.debug import sensitive_variables

import django_emq as emq
from django_emq import registry
from django_emq.explain import explain


def run(*args: str) -> str:
    out = StringIO()
    call_command("emq_explain", *args, stdout=out)
    return out.getvalue()


@pytest.fixture
def made():
    """Makes a task of a function, which is forgotten at the end."""
    before = dict(registry._tasks)

    def make(func, **options):
        return emq.task(name=f"explained.{func.__name__}", **options)(func)

    yield make
    registry._tasks.clear()
    registry._tasks.update(before)


def charge(invoice, card_token=None, password=None):
    def inner():
        with emq.effect("charge") as once:
            return once.first

    return inner(), emq.idempotency_key("charge")


async def acharge(x):
    with emq.effect("charge") as once:
        return once.first


def plain(x):
    return x


def facts(task):
    return dict(explain(task).facts)


def test_defaults(made):
    """A task that says nothing: at least once, five failures, and a word on second runs."""
    sheet = explain(made(plain))
    found = dict(sheet.facts)
    assert found["delivery"].startswith("At least once.")
    assert found["enqueueing"].startswith("at once")
    assert found["queue"] == "default"
    assert found["lease"].startswith("15 s")
    waits = "up to 5 s, up to 15 s, up to 45 s, up to 135 s"
    assert found["failures"] == f"5 lead to the morgue; waits between: {waits}"
    assert found["lost leases"] == "3 lead to the morgue"
    assert found["result"].startswith("not kept")
    assert found["repeats"] == "unknown"
    assert [w.partition(".")[0] for w in sheet.warnings] == [
        "Nothing says that a second run does no harm"
    ]


def test_options_of_the_task_the_queue_and_the_project(made, settings):
    """Whichever counts is told."""
    settings.EMQ = {
        "LEASE": 20,
        "ON_COMMIT": True,
        "QUEUES": {"mail": {"MAX_STALLS": 7, "PARTITIONS": 4, "WAIT_REPLICAS": 1}},
    }
    found = facts(made(plain, queue="mail", max_attempts=3, backoff=60, result_ttl=90, priority=5))
    assert found["queue"] == "mail, spread over 4"
    assert found["enqueueing"] == (
        "after the commit of the caller's transaction, if one is open; waits for 1 replicas"
    )
    assert found["priority"].startswith("5 ")
    assert found["lease"].startswith("20 s")
    assert found["failures"] == "3 lead to the morgue; waits between: 60 s, 60 s"
    assert found["lost leases"] == "7 lead to the morgue"
    assert found["result"] == "kept for 90 s"
    found = facts(made(plain, outbox=True, lease=timedelta(minutes=1), max_stalls=1))
    assert found["enqueueing"].startswith("stored in the caller's transaction")
    assert found["lease"].startswith("60 s")
    assert found["lost leases"].startswith("1 ")


def test_what_bears_a_second_run(made):
    """What the code mentions, in functions inside of it too, and what its author declares."""
    assert facts(made(charge))["repeats"] == "uses effect; uses idempotency_key"
    sheet = explain(made(plain, idempotent=True, fence_key="invoice:1"))
    assert dict(sheet.facts)["repeats"] == (
        "declared to bear a second run (idempotent); fenced as invoice:1"
    )
    assert sheet.warnings == []


def test_what_is_to_be_thought_about(made):
    """One failure only, a policy that is not there, and the database in an event loop."""
    assert "max_attempts is 1" in explain(made(plain, max_attempts=1)).warnings[0]
    sheet = explain(made(plain, backoff="no.such.policy"))
    assert "no.such.policy" in sheet.warnings[0]
    assert "default policy" in dict(sheet.facts)["failures"]
    assert "It is async" in explain(made(acharge)).warnings[0]


def test_secrets_are_named(made):
    """By REDACT, and by Django's decorator."""
    sheet = explain(made(charge))
    assert dict(sheet.facts)["secrets"] == "password hidden"
    assert sheet.warnings[-1].startswith("password: hidden from pages and logs, but plain")
    task = made(sensitive_variables("invoice")(charge))
    assert dict(explain(task).facts)["secrets"] == "invoice, password hidden"


def test_a_policy_of_the_project_is_named(made):
    """There is no telling what it answers."""

    def policy(failures, error):
        return 1

    assert (
        "as test_a_policy_of_the_project_is_named" in facts(made(plain, backoff=policy))["failures"]
    )


def test_the_command(made):
    """One sheet, all names, JSON; an unknown name with the nearest known one. Asks no server."""
    made(charge)
    text = run("explained.charge")
    assert text.startswith("explained.charge\n\ndelivery     At least once.")
    assert "To think about again:\n* password: hidden" in text
    assert "explained.charge  (1 to think about)" in run().splitlines()
    sheet = json.loads(run("explained.charge", "--json"))
    assert sheet["task"] == "explained.charge"
    assert sheet["repeats"] == "uses effect; uses idempotency_key"
    assert len(sheet["warnings"]) == 1
    lines = [json.loads(line)["task"] for line in run("--json").splitlines()]
    assert lines == registry.names()
    with pytest.raises(CommandError, match=r"Did you mean 'explained\.charge'"):
        run("explained.charg")


def test_idempotent_is_a_yes_or_a_no(made):
    """Anything else is refused at the decoration."""
    with pytest.raises(emq.InvalidOption, match="idempotent is 'yes'"):
        made(plain, idempotent="yes")


def test_the_unique_key_is_named(made):
    def plain(user, text=""):
        pass

    assert "unique" not in facts(made(plain))
    assert facts(made(plain, unique=True))["unique"] == (
        "by all arguments, until it has ended; on a conflict: reject"
    )
    options = {"unique": "user", "unique_for": 60, "on_conflict": "throttle"}
    assert facts(made(plain, **options))["unique"] == "by user, 60 s long; on a conflict: throttle"
