"""Tasks that shall have one effect, whatever happens to them at whichever point."""

import os
import signal
import time

from django.db import transaction

import django_emq as emq
from django_emq import connections, scripts
from tests.probe.models import Invoice, Payment
from tests.probe.tasks import _append


class LastWords(dict):
    """A result that has its process killed while it is made into JSON, before the settlement."""

    def items(self):
        os.kill(os.getpid(), signal.SIGKILL)


def _reach(here, point, number):
    """Do at the named point of the first run what the test wants: die, fail, or wait for it."""
    verb, _, where = point.partition(" ")
    if where != here or emq.current_job().token > 1:
        return
    _append(f"{number} reached {here} in {os.getpid()}")
    if verb == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    while not os.path.exists(f"{os.environ['PROBE_FILE']}.{number}"):
        time.sleep(0.005)
    if verb == "fail":
        raise ValueError("at the test's wish")


@emq.task(backoff=0, result_ttl=60)
def charge(number, point="", outer=False):
    """Charge once. The point is a verb and a place, of the first run only.

    :param outer: whether all of it is in a transaction of the task's own.
    """
    if outer:
        with transaction.atomic():
            Invoice.objects.count()
            return _charge(number, point)
    return _charge(number, point)


def _charge(number, point):
    token = emq.current_job().token
    _reach("before", point, number)
    _append(f"{number} enters {token}")
    with emq.effect("charge") as once:
        if once.first:
            _reach("entered", point, number)
            Invoice.objects.create(number=number, text=token)
            once.value = {"by": token}
            _reach("inside", point, number)
    _reach("after", point, number)
    _append(f"{number} by {once.value['by']} in {token}")
    return LastWords(a=1) if point == "die settling" and token == 1 else "charged"


@emq.task(backoff=0)
def write_fenced(number, text):
    """Write a row that the newest claim owns; wait in the first run until the test lets it."""
    _reach("before", "wait before" if text == "old" else "", number)
    try:
        emq.fenced_update(Invoice.objects.filter(number=number), text=text)
    except emq.StaleToken:
        _append(f"{text} refused")
    else:
        _append(f"{text} written")


@emq.task(backoff=60)
def pay(order_id, amount):
    """Pay once."""
    with emq.effect("pay") as once:
        if once.first:
            Payment.objects.create(order_id=order_id, amount=amount)
            Payment.objects.filter(order_id=order_id).update(reference="paid")


@emq.task
def pay_and_go_on(order_id, option):
    """Pay a first part, and have the rest paid by a job that waits for this commit."""
    with emq.effect("part") as once:
        if once.first:
            Payment.objects.create(order_id=order_id, amount=1)
            pay.using(**{option: True}).enqueue(order_id, 100)


@emq.task
def pay_twice(order_id, amount):
    """Look first, and pay then: not safe at all."""
    if not Payment.objects.filter(order_id=order_id).exists():
        Payment.objects.create(order_id=order_id, amount=amount)


@emq.task
def pay_carelessly(order_id, amount):
    Payment.objects.create(order_id=order_id, amount=amount)


@emq.task
def pay_in_one_transaction(order_id, amount):
    with transaction.atomic():
        Payment.objects.create(order_id=order_id, amount=amount)


@emq.task
async def apay(order_id, amount):
    await Payment.objects.acreate(order_id=order_id, amount=amount)


@emq.task(backoff=3600, max_attempts=2)
def fail(message):
    raise ValueError(message)


@emq.task
def chain(count):
    """Enqueue the next of so many, and do something after it."""
    if count > 1:
        chain.enqueue(count - 1)
    Payment.objects.create(order_id=count, amount=1)


@emq.task
def for_ever():
    for_ever.enqueue()


@emq.task
def snooze_once():
    if emq.current_job().token == 1:
        raise emq.Snooze(600)


@emq.task
def lose_itself(verb):
    """Have an operator take this job away from its first run."""
    job = emq.current_job()
    if job.token > 1:
        return
    if verb == "requeue":
        scripts.requeue(connections.client(), job.queue, [job.id])
    else:
        scripts.remove(connections.client(), job.queue, [job.id], force=True)
