import time, pytest
from tests.processes import *
from tests.helpers import *
from tests.probe import tasks, verdicts
from django_emq import inspector
import django_emq as emq
def test_large(probe, client):
    job=verdicts.answer.enqueue("large")
    print(burst(LOG_LEVEL="DEBUG")); print({k:v[:80] for k,v in inspector.row(client,QUEUE,job.id).items()})
def test_err(probe, client):
    for k in ("exit","interrupt","huge"): verdicts.raise_one.enqueue(k)
    tasks.mark.enqueue("x")
    print(burst(LOG_LEVEL="DEBUG")[:3000]); print(probe.marks())
@pytest.mark.parametrize("i", range(6))
def test_ff(probe, client,i):
    job=verdicts.fail_fast.enqueue()
    o=burst(LOG_LEVEL="DEBUG"); print(probe.marks())
    if len(probe.marks())<3: print(o)
