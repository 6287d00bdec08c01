"""A queue on a cluster: each verb, workers over several queues, commands and pages."""

import json
import re
from io import StringIO
from pathlib import Path

import books
import pytest
from django.core.management import call_command
from django.urls import reverse
from redis.cluster import RedisCluster

import django_emq as emq
from django_emq import connections, doctor, inspector, rights, scripts
from django_emq.batches import Batch
from django_emq.cluster import ClusterClient, Lazy
from django_emq.keys import queue_keys
from django_emq.reaper import Reaper
from django_emq.worker.bell import Bell, Wake
from django_emq.worker.turns import Turns
from tests.cluster.servers import free_ports
from tests.conformance.wire import Clock, enqueue_one
from tests.field.test_slots import live
from tests.helpers import burst, point_at
from tests.probe import chained, tasks
from tests.processes import Worker, wait_until
from tests.test_trips import Yard


def balanced(nodes, queue):
    """Check the books of a queue on the node that has it; the ids that there are."""
    with nodes.owner(queue).server.client() as raw:
        return set(books.balance(books.snapshot(raw, queue_keys(queue).base)))


def printed(command, *args):
    """What a command prints, called in this process."""
    out = StringIO()
    call_command(command, *args, stdout=out)
    return out.getvalue()


def test_every_verb(nodes, client, capsys):
    """Each verb works on a queue of each node, also where the scripts were never loaded."""
    queues = nodes.queues()
    assert len({nodes.owner(queue).port for queue in queues}) == 3
    scripts.register(client, queues)
    for queue in queues:
        live(client, queue)
    rights.demand(client, queues, rights.WORKER)
    rights.demand(client, queues, rights.OPERATOR)
    scripts.beat(client, "w", ttl_ms=60_000, facts={"pid": 1, "queues": queues[0]})
    assert scripts.control(client, "w", "quiet")
    assert [worker.id for worker in inspector.workers(client)] == ["w"]
    scripts.unregister(client, queues[2])
    assert inspector.queues(client) == []  # the others were obliterated
    client.raw.set("plain", "a")
    assert emq.cas("plain", "a", "b")
    assert client.raw.get("plain") == b"b"
    for node in nodes.nodes:
        with node.server.client() as raw:
            assert [key for key in raw.scan_iter() if b"whole" in key] == []


def claim_all(client, queues):
    """Claim from each queue, all in one batch; ids by queue."""
    batch = Batch(client)
    for number, queue in enumerate(queues):
        scripts.claim(batch, queue, worker="w", request=f"r{number}", lease_ms=60_000, count=9)
    return [[job.id.decode() for job in claims.jobs] for claims in batch.send()]


def test_a_batch_over_several_nodes(nodes, client):
    """The answers stand in the order of the calls, also on nodes that forgot all scripts."""
    queues = nodes.queues()
    ids = [[enqueue_one(client, queue) for _ in range(2)] for queue in queues]
    assert claim_all(client, queues) == ids
    for node in nodes.primaries:
        node.ask("SCRIPT", "FLUSH")
    batch = Batch(client)
    for (one, two), queue in zip(ids, queues, strict=True):
        scripts.complete(batch, queue, [(one, 1, "")])
        scripts.complete(batch, queue, [(two, 7, "")])
    done = batch.send()
    assert done[::2] == [[1]] * 3
    assert all(isinstance(refused, emq.StaleToken) for (refused,) in done[1::2])
    for pair, queue in zip(ids, queues, strict=True):
        assert balanced(nodes, queue) == {pair[1]}


def test_a_node_that_is_away_holds_up_nobody_else(nodes, client):
    """What is on the other nodes is claimed, extended and swept; what is on this one is unknown."""
    queues = nodes.queues()
    ids = [enqueue_one(client, queue) for queue in queues]
    claimed = claim_all(client, queues)
    assert claimed == [[job_id] for job_id in ids]
    away = nodes.owner(queues[0])
    away.kill()
    try:
        batch = Batch(client)
        for job_id, queue in zip(ids, queues, strict=True):
            scripts.extend(batch, queue, [(job_id, 1)], lease_ms=0)
        first, *others = batch.send()
        assert isinstance(first, emq.OutcomeUnknown)
        assert others == [[1], [1]]
        with pytest.raises(emq.ServerError):
            Reaper(client, tuple(queues), interval=1).run_once()
        for job_id, queue in zip(ids[1:], queues[1:], strict=True):
            assert scripts.state(client, queue, job_id) == "pending"
        with pytest.raises(emq.ServerError):
            scripts.state(client, queues[0], ids[0])
    finally:
        away.server.restart()
        wait_until(nodes.is_sound)
    wait_until(lambda: scripts.register(client, queues) >= 0)


def test_a_worker_whose_first_node_is_away(nodes, client):
    """Jobs of the other nodes are settled, and brought, though each trip asks that one first."""
    queues = tuple(nodes.queues())
    for queue in queues:
        enqueue_one(client, queue)
    yard = Yard(client, queues)
    yard.trips.leave(3)
    assert yard.trips.arrive()
    jobs = yard.brought()
    assert len(jobs) == 3
    away = nodes.owner(queues[0])
    away.kill()
    try:
        yard.deliver(jobs)
        later = enqueue_one(client, queues[1])
        yard.trips.leave(1)
        assert not yard.trips.arrive()
        assert [job.id.decode() for job in yard.brought()] == [later]
        assert [outcome.context.claimed.queue for outcome in yard.trips.outbox] == [queues[0]]
    finally:
        away.server.restart()
        wait_until(nodes.is_sound)
    assert balanced(nodes, queues[1]) == {later}
    assert balanced(nodes, queues[2]) == set()


def test_no_node_answers(nodes):
    """The error is one of ours; the client goes on when the cluster is there again."""
    lost = f"redis://127.0.0.1:{free_ports(1)[0]}/0"
    made = []
    raw = Lazy(
        lambda: made.append(1) or RedisCluster.from_url(lost if len(made) < 3 else nodes.url)
    )
    client = ClusterClient(raw, "emq")
    for _ in range(2):
        with pytest.raises(emq.OutcomeUnknown):
            scripts.register(client, ["q"])
    assert scripts.register(client, ["q"]) == 1
    assert len(made) == 3
    client.close()


def test_a_worker_over_several_nodes(nodes, client, probe):
    """All jobs run once, an idle worker is woken on each node."""
    queues = nodes.queues()
    for queue in queues:
        emq.enqueue_many(tasks.mark.using(queue=queue).job(f"{queue} {i}") for i in range(100))
    with Worker(*queues, "--processes", "2") as worker:
        probe.wait_for(300)
        assert sorted(probe.marks()) == sorted(f"{q} {i}" for q in queues for i in range(100))
        wait_until(lambda: all(inspector.totals(client, q)["completed"] == 100 for q in queues))
        for queue in queues:  # one after the other: each pick-up is a wake of its own
            clock, count = Clock(), len(probe.marks())
            tasks.mark.using(queue=queue).enqueue("late")
            probe.wait_for(count + 1)
            assert clock.seconds < 4  # not the five and more of an unawaited beat
        told = json.loads(printed("emq_stats", "--json"))
        assert sorted(one["queue"] for one in told["queues"]) == sorted(queues)
        assert [one["totals"]["enqueued"] for one in told["queues"]] == [101] * 3
        assert len(told["workers"]) == 1
        worker.terminate()
        assert worker.wait() == 0
        assert "Traceback" not in worker.output
        assert "trying again" not in worker.output
    for queue in queues:
        assert balanced(nodes, queue) == set()


def test_a_wake_that_is_not_used_is_passed_on(nodes, client):
    """Woken from two nodes with room for one job: the other queue's wake goes back to its node."""
    first, second = nodes.queues()[:2]
    for queue in (first, second):
        enqueue_one(client, queue)
        client.raw.delete(queue_keys(queue).wake)  # taken by this worker
    yard = Yard(client, (first, second))
    yard.trips.woken = {first, second}
    yard.trips.leave(1)
    assert yard.trips.arrive()
    assert [inspector.counts(client, q)["active"] for q in (first, second)] == [1, 0]
    assert client.raw.llen(queue_keys(second).wake) == 1


def test_commands_and_pages(nodes, client, admin_client, settings):
    """What people ask with: each works on queues of all nodes."""
    queues = nodes.queues()
    jobs = [tasks.mark.using(queue=queue).enqueue(1) for queue in queues]
    assert "It is ready and the next to be claimed." in printed("emq_why", jobs[0].id)
    printed("emq_reaper", "--once")
    call_command("emq_fsck")
    found = doctor.examine(client, inspector.server(client), role="operator")
    told = [str(one.msg) for one in found]
    for node in nodes.primaries:
        assert any(text.startswith(f"{node.name}: maxmemory is not set") for text in told), told
    assert not any("cluster" in text for text in told)
    for name in ("queue", "morgue", "worker", "server"):
        page = admin_client.get(reverse(f"admin:django_emq_{name}_changelist"))
        assert page.status_code == 200
    listed = admin_client.get(reverse("admin:django_emq_queue_changelist")).content.decode()
    assert all(queue in listed for queue in queues)
    for queue, job in zip(queues, jobs, strict=True):
        assert inspector.page(client, queue, "pending").rows[0].id == job.id
    printed("emq_drain", queues[0], "pending", "--no-input")
    assert inspector.counts(client, queues[0])["pending"] == 0
    point_at(settings, f"{nodes.url}?", PASSWORD="")
    facts = inspector.server(connections.client())
    (wrong,) = [one for one in doctor.judge(facts) if str(one.id).endswith("D003")]
    assert "ClusterConnectionFactory" in str(wrong.hint)


def test_rights(nodes, client, settings):
    """The worker's rights and the three of the page are enough; what is missing has its name."""
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    rules = re.search(r"ACL SETUSER emq-worker on >PASSWORD (.*)", page)[1].split()
    for node in nodes.nodes:
        node.ask("ACL", "SETUSER", "plain", "on", ">pw", *rules, "+cluster|slots", "+command")
    point_at(settings, nodes.url.replace("://", "://plain:pw@"), **nodes.options)
    queues = nodes.queues()
    with pytest.raises(emq.ServerRefused, match=r"may not call ASKING. Give it \+asking"):
        rights.demand(connections.client(), queues, rights.WORKER)
    for node in nodes.nodes:
        node.ask("ACL", "SETUSER", "plain", "+asking")
    own = connections.client()
    rights.demand(own, queues, rights.WORKER)
    assert rights.user(own) == "plain"
    jobs = [tasks.mark.using(queue=queue).enqueue(1).id for queue in queues]
    assert claim_all(own, queues) == [[job] for job in jobs]
    bell = Bell()
    wake = Wake(own, Turns(tuple(queues)), 0.2, bell)
    wake.arm()
    for queue in queues:
        enqueue_one(client, queue)
    woken = set()
    while len(woken) < 3:
        _, ready = bell.wait(10)
        assert ready
        woken |= wake.collect(ready)[0]
    wake.drop()
    bell.close()


def test_waiting_for_replicas(nodes, client):
    """WAIT goes the way of the job, to the node that has its queue, also when that has changed."""
    queues = nodes.queues()
    patient = tasks.mark.using(wait_replicas=1)
    wait_until(nodes.is_sound)
    job = patient.using(queue=queues[2]).enqueue(1)
    assert balanced(nodes, queues[2]) == {job.id}
    with pytest.raises(emq.TooFewReplicas, match=f"queue '{queues[0]}', but only 0 of 1"):
        patient.using(queue=queues[0]).enqueue(1)


def test_a_chain_leads_from_node_to_node(nodes, client, probe):
    """Each link is on another node, which takes it from the list of the queue before, once."""
    queues = nodes.queues()
    links = [chained.link.using(queue=queue).job(queue) for queue in queues]
    job = emq.chain(chained.first.using(queue=queues[2]).job(0), *links).enqueue()
    assert [one.queue for one in job.chain] == [queues[2], *queues]
    burst(*queues)
    assert probe.marks() == ["first 0", *(f"{q} after {n}" for n, q in enumerate(queues))]
    for queue in queues:
        assert balanced(nodes, queue) == set()
        assert scripts.onward(client, queue)[1] == {}
