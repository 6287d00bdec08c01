"""One worker process: a courier in a thread, and runners that take their jobs from it."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

from ..conf import settings
from ..connections import connect
from ..relay import relaying
from ..signals import worker_started
from .courier import Courier
from .options import WorkerOptions
from .page import Page
from .runner import LOOK_UP

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)


def make_page(options: WorkerOptions) -> Page:
    """The page of a child with these options: a slot for each thread and each async job."""
    return Page(options.threads + settings().async_concurrency)


def run_child(options: WorkerOptions, page: Page, *, number: int = 0, supervisor: int = 0) -> int:
    """Run jobs until told to stop; the exit status of the process.

    Takes over the signals of the process, so it must be called in its main thread.

    :param number: of this process among all that its worker ever starts.
    :param supervisor: pid of the process that extends the leases; 0 when this one does.
    """
    client = connect()
    courier = Courier(client, options, page, number=number, supervisor=supervisor, leave=leave)
    if worker_started.receivers:
        worker_started.tell(None, name=options.name, queues=options.queues)
    restore = watch_signals(courier.bell.signal_fd)
    thread = threading.Thread(target=courier.run, name="emq-courier", daemon=True)
    thread.start()
    try:
        with relaying(client, enabled=options.sweep, begin=courier.hygiene.adopt):
            if options.threads == 1:
                courier.runners[0].run()
            else:
                _run_threads(courier)
            wait_for(thread)
    finally:
        courier.limits.close()
        restore()
        courier.bell.close()
        client.close()
    return courier.status


def _run_threads(courier: Courier) -> None:
    threads = [
        threading.Thread(target=runner.run, name=f"emq-runner-{runner.slot}", daemon=True)
        for runner in courier.runners
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        wait_for(thread)


def wait_for(thread: threading.Thread) -> None:
    """Join a thread, and look up for signals now and then; see `runner.LOOK_UP`."""
    while thread.is_alive():
        thread.join(LOOK_UP)


def watch_signals(fd: int) -> Callable[[], None]:
    """Have SIGTERM, SIGINT and SIGQUIT written to a socket; answers what undoes it.

    The number of the signal is written by the C handler, so it arrives while the main thread is
    held up by a job. The Python handler has nothing left to do.
    """
    before = {number: signal.signal(number, _ignore) for number in SIGNALS}
    fd_before = signal.set_wakeup_fd(fd, warn_on_full_buffer=False)

    def restore() -> None:
        signal.set_wakeup_fd(fd_before)
        for number, handler in before.items():
            signal.signal(number, handler)

    return restore


def _ignore(number: int, frame: FrameType | None) -> None:
    pass


def leave(status: int) -> None:
    """End this process although a job still runs in it."""
    logging.shutdown()
    os._exit(status)
