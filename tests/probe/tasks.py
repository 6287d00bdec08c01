"""Tasks that do one observable thing each. Marks are lines of the file that PROBE_FILE names."""

import asyncio
import ctypes
import gc
import os
import signal
import sys
import time

import django_emq as emq

_hoard: list[bytes] = []


def _append(value: object) -> None:
    # One write in append mode: lines of several processes never mix, and a line that was written
    # stays written when its process is killed the moment after.
    file = os.open(os.environ["PROBE_FILE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, f"{value}\n".encode())
    finally:
        os.close(file)


@emq.task
def mark(x):
    _append(x)


@emq.task(queue="numbered.7")
def mark_numbered(x):
    """Its queue is called like a partition, should there be such a queue."""
    _append(x)


@emq.task
def boom(message="boom"):
    raise ValueError(message)


@emq.task(backoff=0)
def boom_until(count, x):
    """Fail until this has been called `count` times, then leave the last mark."""
    _append(x)
    with open(os.environ["PROBE_FILE"]) as file:
        calls = file.read().splitlines().count(str(x))
    if calls < count:
        raise ValueError(f"call {calls} of {count}")


@emq.task
def nap(seconds):
    time.sleep(seconds)


@emq.task
def nap_then_mark(seconds, x):
    time.sleep(seconds)
    _append(x)


@emq.task
def mark_then_nap(x, seconds):
    _append(x)
    time.sleep(seconds)


@emq.task
def mark_then_nap_then_mark_token(x, seconds):
    _append(x)
    time.sleep(seconds)
    _append(f"{x} token {emq.current_job().token}")


@emq.task
def mark_where(x):
    """Which process has run it, and after how many claims."""
    _append(f"{x} {os.getpid()} {emq.current_job().token}")


@emq.task
def mark_collected():
    """What the garbage collector of this process looks at, and what it leaves out: objects."""
    _append(f"{len(gc.get_objects())} {gc.get_freeze_count()}")


@emq.task
def die():
    """Be killed in the middle of a job."""
    os.kill(os.getpid(), signal.SIGKILL)


@emq.task
def mark_then_die(x):
    _append(x)
    os.kill(os.getpid(), signal.SIGKILL)


@emq.task
def leave(status=0):
    """Call sys.exit(), as a careless task does."""
    sys.exit(status)


@emq.task
def quit_hard(status):
    """End the process without a word to anybody."""
    os._exit(status)


@emq.task
def hold_gil(seconds):
    """Let no other thread of this process run Python code meanwhile."""
    # PyDLL, unlike CDLL, keeps the interpreter lock during the call.
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))


@emq.task
def grow(megabytes):
    """Make the process larger for good."""
    _hoard.append(os.urandom(1) * (megabytes << 20))


@emq.task
def mark_job():
    """Leave what `current_job()` says: id, token, attempt and queue."""
    job = emq.current_job()
    _append(f"{job.id} {job.token} {job.attempt} {job.queue}")


@emq.task
def mark_planned():
    """Leave the time that the job stands for, in seconds since 1970."""
    planned = emq.current_job().planned_at
    _append(planned and f"{planned.timestamp():.0f}")


@emq.task
async def aprobe(x):
    await asyncio.sleep(0)
    _append(x)


@emq.task
async def anap_then_mark(seconds, x):
    await asyncio.sleep(seconds)
    _append(x)


@emq.task
async def aboom(message="boom"):
    raise ValueError(message)
