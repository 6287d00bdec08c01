"""The end that somebody asks for: finish, hand back, leave."""

import os
import signal

import pytest

import django_emq as emq
from django_emq import inspector
from django_emq.worker.child import make_page
from django_emq.worker.courier import Courier
from django_emq.worker.options import WorkerOptions
from django_emq.worker.supervisor import Supervisor
from tests.conformance.wire import Clock, books_balance
from tests.helpers import QUEUE, burst, lease_ends
from tests.probe import tasks, verdicts
from tests.processes import Worker, wait_until
from tests.proxy import Act, Proxy

WAYS = [(signal.SIGTERM, "1"), (signal.SIGINT, "1"), (signal.SIGINT, "0")]


def enough_grace(probe, client, number, processes):
    """Grace 10: one mark, status 0; what waited still waits, never claimed."""
    tasks.mark_then_nap_then_mark_token.enqueue("a", 1)
    others = emq.enqueue_many(tasks.mark.job(i) for i in range(2))
    with Worker("--grace", "10", "--processes", processes) as worker:
        probe.wait_for(1)
        worker.signal(number)
        assert worker.wait() == 0
    assert probe.marks() == ["a", "a token 1"]
    assert inspector.counts(client, QUEUE)["pending"] == 2
    rows = [inspector.row(client, QUEUE, job.id) for job in others]
    assert {row["attempts"] for row in rows} == {"0"}
    books_balance(client, QUEUE)


def short_grace(probe, client, number, processes):
    """Grace 0.5: handed back with its token, no failure, no stall; the next worker runs it."""
    job = verdicts.nap_once_then_mark.enqueue(60, "x")
    with Worker("--grace", "0.5", "--lease", "60", "--processes", processes) as worker:
        wait_until(lambda: inspector.state(client, QUEUE, job.id) == "active")
        worker.signal(number)
        clock = Clock()
        assert worker.wait() == 0
        assert 0.5 <= clock.seconds < 10
    row = inspector.row(client, QUEUE, job.id)
    assert (row["state"], row["attempts"]) == ("pending", "1")
    assert not {"failures", "stalls"} & set(row)
    burst()
    assert probe.marks() == ["x token 2"]
    assert books_balance(client, QUEUE) == {}


def two_signals(probe, client, number, processes):
    """Two signals: nobody waits for the grace."""
    job = verdicts.nap_once_then_mark.enqueue(60, "x")
    with Worker("--grace", "60", "--lease", "60", "--processes", processes) as worker:
        wait_until(lambda: inspector.state(client, QUEUE, job.id) == "active")
        worker.signal(number)
        if processes == "1":
            worker.wait_for(" stops: ")
        else:
            wait_until(lambda: signals_of(worker.pid) == 0)
        worker.signal(number)
        clock = Clock()
        assert worker.wait() == 0
        assert clock.seconds < 10
    assert inspector.state(client, QUEUE, job.id) == "pending"
    assert probe.marks() == []


def signals_of(pid):
    """The signals that wait to be handled, as bits: two of a number would be one."""
    with open(f"/proc/{pid}/status") as file:
        return sum(
            int(line.split()[1], 16) for line in file if line.startswith(("SigPnd", "ShdPnd"))
        )


@pytest.mark.parametrize("case", [enough_grace, short_grace, two_signals])
@pytest.mark.parametrize(("number", "processes"), WAYS)
def test_B97_stop_signal_during_a_job(probe, client, number, processes, case):
    """It ends in the grace, or is handed back after it, or at the second signal.

    A job of 1 s, not of 3, and a grace of 0.5 s, not of 1.
    """
    case(probe, client, number, processes)


def test_async_and_threaded_jobs_are_handed_back_too(probe, client):
    """All that runs when the grace ends is handed back, wherever it runs."""
    jobs = emq.enqueue_many(
        [tasks.anap_then_mark.job(60, 1), tasks.nap.job(60), tasks.anap_then_mark.job(60, 2)]
    )
    with Worker("--grace", "0", "--threads", "2") as worker:
        wait_until(lambda: inspector.counts(client, QUEUE)["active"] == 3)
        worker.terminate()
        assert worker.wait() == 0
    rows = [inspector.row(client, QUEUE, job.id) for job in jobs]
    assert {(row["state"], row["attempts"]) for row in rows} == {("pending", "1")}
    assert inspector.totals(client, QUEUE)["released"] == 3


def test_async_jobs_finish_within_the_grace(probe, client):
    """The first signal waits for jobs on the loop as well."""
    tasks.anap_then_mark.enqueue(1, "a")
    with Worker("--grace", "10") as worker:
        wait_until(lambda: inspector.counts(client, QUEUE)["active"] == 1)
        worker.terminate()
        assert worker.wait() == 0
    assert probe.marks() == ["a"]
    assert books_balance(client, QUEUE) == {}


def test_a_worker_can_be_stopped_while_the_server_is_away(probe, client, proxy: Proxy):
    """No server, a job that runs: SIGTERM is heard, and the grace is kept."""
    job = tasks.mark_then_nap.enqueue("a", 60)
    with Worker("--lease", "1", "--grace", "0.5", EMQ_URL=proxy.url) as worker:
        probe.wait_for(1)
        proxy.refuse()
        worker.wait_for("trying again")
        worker.terminate()
        clock = Clock()
        assert worker.wait() == 0
        assert clock.seconds < 5
    assert "Traceback" not in worker.output
    assert inspector.row(client, QUEUE, job.id)["attempts"] == "1"
    assert lease_ends(client, job.id) is not None


def test_a_release_whose_reply_is_lost(probe, client, proxy: Proxy):
    """The hand-back at the end is sent again, and changes nothing the second time."""
    job = verdicts.nap_once_then_mark.enqueue(60, "x")
    rule = proxy.on("release", Act.CUT_AFTER)
    with Worker("--grace", "0", "--lease", "60", EMQ_URL=proxy.url) as worker:
        wait_until(lambda: inspector.state(client, QUEUE, job.id) == "active")
        worker.terminate()
        assert worker.wait() == 0
    assert rule.fired.is_set()
    assert inspector.state(client, QUEUE, job.id) == "pending"
    assert "ERROR" not in worker.output


@pytest.mark.timeout(60)
def test_a_signal_in_the_pause_after_an_error_is_obeyed(client, caplog):
    """Both loops rest for a second after an error that nobody expected, and hear meanwhile."""

    class Stumbling:
        """Raises in its first step, with a SIGTERM on its way."""

        stumbled = False

        def step(self):
            if not self.stumbled:
                self.stumbled = True
                bell = getattr(self, "bell", None) or self._bell
                os.write(bell.signal_fd, bytes([signal.SIGTERM]))
                raise RuntimeError("nobody expected this")
            super().step()

    class StumblingCourier(Stumbling, Courier):
        pass

    class StumblingSupervisor(Stumbling, Supervisor):
        pass

    options = WorkerOptions(queues=(QUEUE,), lease=15)
    courier = StumblingCourier(client, options, make_page(options), leave=lambda status: None)
    courier.run()
    courier.bell.close()
    assert courier.stopping
    supervisor = StumblingSupervisor(options, say=lambda line: None)
    assert supervisor.run() == 0
    assert supervisor.stopping
    assert not supervisor.children
    assert caplog.text.count("unexpected error; going on") == 2
