"""Arguments: what JSON carries goes through, everything else is refused at the call."""

import datetime
import decimal
import enum
import json
import math
import uuid
from pathlib import Path

import pytest
from django.contrib.auth.models import Group
from django.db import transaction
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy

import django_emq as emq
from django_emq import inspector
from django_emq.jobs import encode
from tests.helpers import QUEUE, burst, children
from tests.probe import tasks, verdicts
from tests.processes import Worker

NOW = datetime.datetime(2026, 11, 29, 12, tzinfo=datetime.UTC)


class Colour(enum.StrEnum):
    RED = "red"


class Row(dict):
    pass


REFUSED = [
    ({1: "a"}, "args[0][1]: JSON has only text keys, not int"),
    ((1, 2), "args[0]: tuple does not survive JSON. Pass a list"),
    ({1, 2}, "args[0]: set does not survive JSON. Pass a list"),
    (frozenset(), "args[0]: frozenset does not survive JSON. Pass a list"),
    (b"x", "args[0]: bytes does not survive JSON. Pass a str"),
    (decimal.Decimal("0.10"), "args[0]: decimal.Decimal does not survive JSON"),
    (uuid.uuid4(), "args[0]: uuid.UUID does not survive JSON"),
    (NOW, "args[0]: datetime.datetime does not survive JSON. Pass .isoformat()"),
    (NOW.date(), "args[0]: datetime.date does not survive JSON. Pass .isoformat()"),
    (gettext_lazy("Name"), "does not survive JSON"),
    (Group(name="g"), "Group does not survive JSON. Pass its primary key"),
    ((i for i in range(3)), "args[0]: generator does not survive JSON"),
    (len, "args[0]: builtin_function_or_method does not survive JSON"),
    (Row(a=1), "Row does not survive JSON"),
    (1j, "args[0]: complex does not survive JSON"),
    (math.nan, "args[0]: nan is not JSON"),
    (math.inf, "args[0]: inf is not JSON"),
    (-math.inf, "args[0]: -inf is not JSON"),
    ([{"a": [0, {"when": NOW}]}], "args[0][0]['a'][1]['when']: datetime.datetime does not"),
    ({"a": {None: 1}}, "args[0]['a'][None]: JSON has only text keys, not NoneType"),
    ([[math.nan]], "args[0][0][0]: nan is not JSON"),
]


@pytest.mark.django_db
@pytest.mark.parametrize("way", ["outside", "in a transaction"])
@pytest.mark.parametrize(("value", "message"), REFUSED)
def test_B53_arguments_that_json_cannot_carry(client, value, message, way):
    """TypeError in the call itself, with the path of the value; nothing is stored.

    All of the report's values are refused. What is accepted instead of them, and that a worker and
    a retry see equal values of equal types, is below; the table in the reference is checked.
    """
    if way == "in a transaction":
        with transaction.atomic():
            refuse(client, value, message)
    else:
        refuse(client, value, message)


def refuse(client, value, message):
    with pytest.raises(emq.InvalidArguments) as caught:
        tasks.mark.enqueue(value)
    assert message in str(caught.value)
    assert isinstance(caught.value, TypeError)
    with pytest.raises(emq.InvalidArguments) as caught:
        tasks.mark.enqueue(x=value)
    assert message.replace("args[0]", "kwargs['x']") in str(caught.value)
    assert client.raw.dbsize() == 0


def nested(levels):
    value = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_B54_not_a_number_and_very_deep_arguments(probe, client):
    """NaN and infinity are a ValueError; what is too deep or too large is refused with its bound.

    What is within the bounds runs with equal values: 200 levels, 10,000 keys, 400 digits.
    """
    for value in (math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match="is not JSON"):
            tasks.mark.enqueue(value)
    with pytest.raises(emq.PayloadTooLarge, match="MAX_PAYLOAD allows 1048576"):
        tasks.mark.enqueue({str(i): i for i in range(100_000)})
    for value in (nested(1001), nested(100_000)):
        with pytest.raises(emq.InvalidArguments, match="deeper than 200 levels. Flatten it"):
            tasks.mark.enqueue(value)
    ring = []
    ring.append(ring)
    with pytest.raises(emq.InvalidArguments, match="deeper than 200 levels"):
        tasks.mark.enqueue(ring)
    assert client.raw.dbsize() == 0
    fit = [nested(199), {str(i): i for i in range(10_000)}, int("9" * 400)]
    jobs = emq.enqueue_many(verdicts.echo.job(value) for value in fit)
    tasks.mark.enqueue("next")
    burst()
    assert probe.marks() == ["next"]
    results = [inspector.row(client, QUEUE, job.id)["result"] for job in jobs]
    assert [json.loads(result) for result in results] == fit


def test_a_number_without_end_is_refused():
    """What Python itself will not turn into text is refused, with the reason."""
    with pytest.raises(emq.InvalidArguments, match="cannot be written as JSON"):
        tasks.mark.enqueue(10**5000)


CARRIED = [
    None,
    True,
    0,
    -1,
    2**63,
    9007199254740993,
    10**399,
    1.0,
    0.1,
    -0.0,
    5e-324,
    "",
    "text",
    "\u0639\u0631\u0628\u064a \U0001f600 \x00 \ud83d",
    [],
    {},
    [[], {}, [None]],
    {"": "", "a b": {"c": [1, 2.5, False]}},
    {str(i): i for i in range(10_000)},
]


def test_what_json_carries_arrives_as_it_is(probe):
    """Equal values of equal types in the worker, by position and by name."""
    emq.enqueue_many(verdicts.compare.job(i, value, named=value) for i, value in enumerate(CARRIED))
    burst()
    assert probe.marks() == [f"{i} same" for i in range(len(CARRIED))]


def test_a_retry_sees_the_same_arguments(probe):
    """A job's second attempt gets what the first one got, whatever that did to it."""
    verdicts.spoil_then_compare.enqueue([1, {"a": []}])
    burst()
    assert probe.marks() == ["[1, {'a': []}]", "[1, {'a': []}]"]


def test_subclasses_of_text_and_numbers_arrive_plain(probe):
    """The documentation says so: a choice, a safe string, arrive as str."""
    verdicts.mark_types.enqueue(Colour.RED, mark_safe("<b>"))
    burst()
    assert probe.marks() == ["str red str <b>"]


def test_an_argument_of_any_name(probe):
    """No name is taken from the task's function: `task`, `self`, `name` and `queue` are its own."""
    verdicts.any_names.enqueue(1, task=2, self=3, name=4, queue=5, args=6, delay=7)
    emq.enqueue(verdicts.any_names, 1, task=2, self=3, name=4, queue=5, args=6, delay=7)
    burst()
    assert probe.marks() == ["1 2 3 4 5 6 7"] * 2


def test_B120_very_large_payload(probe, client, settings):
    """At the limit it runs, one byte more is refused with both sizes, 100 MB never leave us.

    A worker does not grow by what it has run: 100 jobs at the default limit of 1 MB.
    """
    limit = 1_048_576
    room = limit - len(encode(verdicts.mark_size.name, ("",), {}, limit=limit))
    with pytest.raises(emq.PayloadTooLarge) as caught:
        verdicts.mark_size.enqueue("x" * (room + 1))
    assert isinstance(caught.value, ValueError)
    assert f"has {limit + 1} bytes, MAX_PAYLOAD allows {limit}" in str(caught.value)
    with pytest.raises(emq.PayloadTooLarge, match="MAX_PAYLOAD allows 1048576"):
        tasks.mark.enqueue("x" * 100_000_000)
    assert client.raw.dbsize() == 0
    small = emq.enqueue_many(tasks.mark.using(queue="small").job("y" * 500) for _ in range(1000))
    assert {job.status for job in small} == {"enqueued"}
    settings.EMQ = {"MAX_PAYLOAD": 4096}
    with pytest.raises(emq.PayloadTooLarge, match="MAX_PAYLOAD allows 4096"):
        tasks.mark.enqueue("x" * 5000)
    settings.EMQ = {}

    job = verdicts.mark_size.enqueue("x" * room)
    assert len(inspector.row(client, QUEUE, job.id)["payload"]) == limit
    with Worker() as worker:
        assert probe.wait_for(1) == [str(room)]
        (child,) = children(worker.pid)
        before = rss_mb(child)
        for _ in range(10):
            emq.enqueue_many(verdicts.mark_size.job("x" * room) for _ in range(10))
        assert probe.wait_for(101) == [str(room)] * 101
        assert rss_mb(child) - before < 50
    assert inspector.counts(client, "small")["pending"] == 1000


def rss_mb(pid):
    """Memory of a process in MB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 1e6
