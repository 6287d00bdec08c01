"""B84: what a stranger has written to the server is never run."""

import ast
import pickle

from django_emq import inspector
from django_emq.ids import mint
from django_emq.jobs import NewJob
from django_emq.keys import queue_keys
from tests.admin.yard import make_yard, url
from tests.conformance.wire import admit
from tests.helpers import QUEUE
from tests.probe import tasks
from tests.processes import ROOT, Worker, wait_until

UNSAFE = {"pickle", "marshal", "shelve", "yaml", "dill"}


class Bomb:
    def __init__(self, path) -> None:
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_B84_code_run_from_stored_data(probe, client, redis, admin_client, tmp_path):
    """A pickle in every field and key that is read: it creates no file, the job is in the morgue.

    The pages answer and show it as what cannot be read. No unsafe loader is imported at all.
    """
    keys = queue_keys(QUEUE)
    bomb = pickle.dumps(Bomb(tmp_path / "exploded"))
    yard = make_yard(client, QUEUE)
    bad = NewJob(mint(), "x")
    assert admit(client, QUEUE, bad) == [1]
    redis.hset(keys.job(bad.id), "payload", bomb)
    for field in ("payload", "result", "last_error", "progress", "traceback", "worker"):
        for job_id in (yard.dead[0], yard.done[0]):
            redis.hset(keys.job(job_id), field, bomb)
    redis.hset(keys.meta, mapping={"paused_by": bomb, "paused_why": bomb})
    redis.hset("{emq}:worker:stranger", mapping={"pid": bomb, "state": bomb, "jobs": bomb})
    redis.zadd("{emq}:workers", {"stranger": redis.time()[0] * 1000})
    redis.set(keys.sent("stranger"), bomb)
    redis.set(keys.claims("stranger"), bomb)
    with Worker() as worker:
        wait_until(lambda: inspector.state(client, QUEUE, bad.id) == "dead")
        tasks.mark.enqueue("next")
        wait_until(lambda: "next" in probe.marks())
        assert "Traceback" not in worker.output
    assert "bad payload" in inspector.row(client, QUEUE, bad.id)["last_error"]
    assert inspector.stats(client, QUEUE).counts["dead"] == 5
    assert inspector.why(client, QUEUE, bad.id).state == "dead"
    for job_id in (bad.id, yard.dead[0], yard.done[0]):
        page = admin_client.get(url("queue_job", queue=QUEUE, job_id=job_id))
        assert page.status_code == 200
        assert "cannot be read" in page.content.decode()
        page = admin_client.get(url("queue_edit", queue=QUEUE, job_id=job_id))
        assert page.status_code in (200, 302)  # a finished job is not edited
    for name in ("pending", "active", "dead", "done"):
        assert admin_client.get(url("queue_set", queue=QUEUE, name=name)).status_code == 200
    for view in ("queue", "morgue", "worker", "server"):
        assert admin_client.get(url(f"{view}_changelist")).status_code == 200
    assert not (tmp_path / "exploded").exists()


def test_no_unsafe_loader_is_imported():
    """No pickle, marshal or yaml, no eval and no exec."""
    for path in sorted((ROOT / "django_emq").rglob("*.py")):
        if path.parent.name == "conformance":  # a suite for tests, which no worker imports
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not UNSAFE & {name.name.partition(".")[0] for name in node.names}, path
            elif isinstance(node, ast.ImportFrom):
                assert (node.module or "").partition(".")[0] not in UNSAFE, path
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec"), path
