"""Tasks that take longer than they may, in one way each."""

import asyncio
import itertools
import logging
import time

from django.db import connection, transaction
from django_redis import get_redis_connection

import django_emq as emq
from tests.probe.tasks import _append

SHORT = {"timeout": 0.2, "max_attempts": 1}
KILLED = {"timeout": 0.1, "kill_after": 0.3, "max_attempts": 1}

_asked = itertools.count()


def _spin():
    while True:
        pass


@emq.task(**SHORT)
def spin(x):
    """Keep the interpreter busy."""
    _append(x)
    _spin()


@emq.task(**SHORT)
def sleep(x):
    """Block in a call to the system."""
    _append(x)
    time.sleep(3600)


@emq.task(**SHORT)
async def asleep(x):
    _append(x)
    await asyncio.sleep(3600)


@emq.task(**SHORT)
def swallow(x):
    """Go on after whatever a call raises, as loops over many things do."""
    _append(x)
    while True:
        try:
            _spin()
        except Exception:
            _append("swallowed")


@emq.task(**SHORT)
def tidy(x):
    """Catch the limit, and end well."""
    try:
        _spin()
    except emq.TimeLimitExceeded as error:
        _append(f"{x} {error.seconds} {emq.current_job().time_left}")


@emq.task(**SHORT)
async def atidy(x):
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        _append(x)
        raise


@emq.task(**SHORT)
def wait_for_redis(x, key):
    """Be in the middle of a call to Redis when the time is over."""
    _append(x)
    get_redis_connection("emq").blpop(key, 3600)


@emq.task(**SHORT)
def wait_for_database(x):
    """Be in the middle of a query, in a transaction."""
    _append(x)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("create table half_done (id int)")
        cursor.execute("select pg_sleep(3600)")


@emq.task(**SHORT)
def catch_and_ask(x, key):
    """Be in the middle of a call, catch the limit, and use the same connections again."""
    try:
        get_redis_connection("emq").blpop(key, 3600)
    except emq.TimeLimitExceeded:
        ask.func(x)


@emq.task(timeout=30, max_attempts=1)
def ask(x):
    """Ask Redis and the database for things of one's own, several times; mark if all is right."""
    redis = get_redis_connection("emq")
    for _ in range(3):
        mine = f"{x} {next(_asked)}"
        assert redis.echo(mine) == mine.encode()
        with connection.cursor() as cursor:
            cursor.execute("select %s", [mine])
            assert cursor.fetchone() == (mine,)
    assert not connection.in_atomic_block
    _append(x)


@emq.task(timeout=0.2, max_attempts=1)
def log_slowly(x):
    """Have the time end while a log handler is at work."""

    class Slow(logging.Handler):
        def emit(self, record):
            time.sleep(0.6)
            _append(f"{x} logged")

    logger = logging.getLogger("tests.slow")
    logger.addHandler(Slow())
    try:
        logger.error("slow")
        _spin()
    finally:
        _append(f"{x} ended")


@emq.task(**KILLED)
def stuck(x):
    """Be deaf to the soft limit."""
    _append(x)
    while True:
        try:
            _spin()
        except BaseException:
            _append(f"{x} deaf")


@emq.task(**KILLED)
async def astuck(x):
    _append(x)
    time.sleep(3600)


@emq.task(max_attempts=1)
def unlimited(x, seconds):
    """Has no timeout of its own."""
    time.sleep(seconds)
    _append(x)


@emq.task
def until_cancelled(x):
    """Run on until told; mark what is known then."""
    job = emq.current_job()
    _append(x)
    while not job.cancelled:
        time.sleep(0.01)
    try:
        job.check()
    except emq.JobCancelled as error:
        _append(f"{x} {job.lost} {isinstance(error, emq.LeaseLost)}")
        raise


@emq.task
async def auntil_cancelled(x):
    _append(x)
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        _append(f"{x} {emq.current_job().cancelled}")
        raise
