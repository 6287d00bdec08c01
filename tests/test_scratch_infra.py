import signal
from tests.processes import Worker, manage, wait_until
from tests.probe.tasks import *
import pytest

@pytest.mark.parametrize("p", ["0", "1"])
def test_w(probe, redis, p):
    with Worker("--processes", p) as w:
        w.wait_ready()
        mark.enqueue("a"); aprobe.enqueue("b"); mark_job.enqueue(); nap_then_mark.enqueue(0.05, "c"); boom.enqueue(); hold_gil.enqueue(0.1); grow.enqueue(1); anap_then_mark.enqueue(0.01, "d")
        print(probe.wait_for(5))
        w.terminate()
        assert w.wait() == 0
        print(w.output)

def test_die(probe):
    with Worker() as w:
        w.wait_ready()
        mark_then_die.enqueue("x")
        probe.wait_for(2)
        w.terminate(); w.wait(); print(w.output)
