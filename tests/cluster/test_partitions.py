"""One queue over all nodes of a cluster."""

import json
from io import StringIO

import pytest
from django.core.management import call_command
from django.urls import reverse

import django_emq as emq
from django_emq import inspector, scripts, whole
from django_emq.admission import push_many
from django_emq.ids import mint
from django_emq.jobs import NewJob
from tests.probe import tasks
from tests.processes import Worker, wait_until
from tests.variant import variant

PARTS = [f"events.{number}" for number in range(8)]
EMQ = {"QUEUES": {"events": {"PARTITIONS": len(PARTS)}}}
send = tasks.mark.using(queue="events")


@pytest.fixture(autouse=True)
def parted(nodes, settings):
    """Its partitions are on each of the three nodes."""
    settings.EMQ = EMQ
    assert len({nodes.owner(part).port for part in PARTS}) == 3


def calls(nodes):
    """How often each primary has been asked to run a script."""
    counted = []
    for node in nodes.primaries:
        with node.server.client() as raw:
            counted.append(raw.info("commandstats")["cmdstat_evalsha"]["calls"])
    return counted


def grown(nodes, before):
    return [now - then for now, then in zip(calls(nodes), before, strict=True)]


def test_all_nodes_carry_the_queue(nodes, client, probe):
    """Producers and workers ask each; every job runs once, those of a key in their order."""
    emq.enqueue_many(send.job("first") for _ in range(100))
    before = calls(nodes)
    made = emq.enqueue_many(
        send.using(partition_key=f"k{n % 16}").job(f"{n % 16} {n}") for n in range(400)
    )
    used = {job.queue for job in made}
    assert sum(grown(nodes, before)) == len(used)  # one call for each partition
    assert min(grown(nodes, before)) > 0
    before = calls(nodes)
    with Worker("events", **variant(EMQ=EMQ)) as worker:
        worker.wait_ready()
        probe.wait_for(500)
        wait_until(lambda: inspector.totals(client, "events").get("completed") == 500)
        assert min(grown(nodes, before)) >= 3
        send.enqueue("late")  # a wake of its own, on whichever node
        assert probe.wait_for(501)[500] == "late"
        assert inspector.workers(client)[0].queues == PARTS
        worker.terminate()
        assert worker.wait() == 0
        assert "Traceback" not in worker.output
    marks = probe.marks()
    assert marks.count("first") == 100
    for key in range(16):
        numbers = [int(m.split()[1]) for m in marks if m.startswith(f"{key} ")]
        assert numbers == list(range(key, 400, 16))


def test_the_whole_on_all_nodes(client, admin_client):
    """Figures, pause, commands and pages."""
    jobs = emq.enqueue_many(send.job(n) for n in range(60))
    assert inspector.stats(client, "events").counts["pending"] == 60
    assert whole.pause(client, "events", by="ada")
    assert {one.paused for one in inspector.overview(client, PARTS)} == {True}
    assert whole.resume(client, "events")
    out = StringIO()
    call_command("emq_why", jobs[7].id, "--queue", "events", stdout=out)
    assert f"of queue {jobs[7].queue} is pending" in out.getvalue()
    out = StringIO()
    call_command("emq_stats", "--json", stdout=out)
    (told,) = json.loads(out.getvalue())["queues"]
    assert (told["queue"], told["counts"]["pending"]) == ("events", 60)
    page = admin_client.get(reverse("admin:django_emq_queue_changelist"))
    assert [one.queue for one, _ in page.context["queues"]] == ["events"]
    call_command("emq_drain", "events", "pending", "--no-input", stdout=StringIO())
    whole.pause(client, "events")
    assert not whole.obliterate(client, "events")
    assert inspector.queues(client) == []


def test_a_node_that_is_away_takes_its_partitions_along(nodes, client):
    """What is on the others is stored once, however often it was sent; the call tells."""
    lots = {part: [NewJob(mint(), "{}")] for part in PARTS}
    scripts.register(client, PARTS)
    client.known_queues.update(dict.fromkeys(PARTS, float("inf")))
    away = next(node for node in nodes.primaries if node.port == nodes.owner(PARTS[0]).port)
    there = [part for part in PARTS if nodes.owner(part).port != away.port]
    away.kill()
    try:
        with pytest.raises(emq.OutcomeUnknown, match="no answer after 3 tries"):
            push_many(client, lots)
        for part in there:
            assert inspector.overview(client, [part])[0].totals["enqueued"] == 1
    finally:
        away.server.restart()
        wait_until(nodes.is_sound)
