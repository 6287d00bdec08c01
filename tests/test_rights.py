"""The users of docs/security.md: their rights are enough, and none of them is too much."""

import io
import re
from collections.abc import Iterator

import pytest
from django.core.management import CommandError, call_command

import django_emq as emq
from django_emq import connections, doctor, inspector, rights, scripts
from django_emq.exceptions import ServerError, ServerRefused
from django_emq.keys import queue_keys
from tests.conformance.wire import books_balance
from tests.operator_cases import job_in
from tests.probe import tasks, unique, verdicts
from tests.processes import ROOT, Worker, wait_until

PAGE = (ROOT / "docs" / "security.md").read_text()
RULES = {
    name: rules.split()
    for name, rules in re.findall(r"^ACL SETUSER emq-(\w+) (.*)$", PAGE, re.MULTILINE)
}
VERBS = doctor.ROLES


def location(server, role: str) -> str:
    return server.url.replace("://", f"://emq-{role}:PASSWORD@", 1)


@pytest.fixture
def user(redis, server, settings) -> Iterator[object]:
    """Make a user of the page, with changes, and have this process sign in as it."""
    made = []

    def sign_in(role: str, *, without: str = "") -> str:
        name = f"emq-{role}"
        made.append(name)
        assert not without or without in RULES[role]
        rules = [rule for rule in RULES[role] if rule != without]
        redis.execute_command("ACL", "SETUSER", name, "reset", *rules)
        url = location(server, role)
        settings.CACHES = {
            **settings.CACHES,
            "emq": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url},
        }
        return url

    yield sign_in
    connections.reset()
    redis.execute_command("ACL", "DELUSER", *made)


def test_the_questions_are_whole_commands(redis):
    """A server may refuse a question about a command that has too many words, or too few."""
    keys = queue_keys("default")
    verbs = (rights.WORKER, rights.REAPER, rights.OPERATOR)
    names = {name for some in verbs for name in rights.commands(some)} | set(rights.READS)
    asked = [rights._call(name, keys) for name in sorted(names)]
    asked += [tuple(question.split()) for question in rights.QUESTIONS]
    for words in asked:
        found = redis.execute_command("COMMAND", "INFO", words[0])
        arity = next(iter(found.values()))["arity"] if isinstance(found, dict) else found[0][1]
        assert len(words) == arity if arity > 0 else len(words) >= -arity, (words, arity)


def test_the_page_has_what_the_scripts_call():
    """No command less, and none more."""
    own = {"worker": {"blpop"}, "producer": set(), "operator": {"info", "config|get", "scan"}}
    for role, verbs in VERBS.items():
        wanted = {name.lower() for name in rights.commands(verbs)} | own[role]
        wanted |= {"select", "evalsha", "eval", "script|load", "script|exists"}
        wanted |= {name.lower() for name in rights.READS} if role == "operator" else set()
        assert {rule[1:] for rule in RULES[role] if rule[0] == "+"} == wanted, role


def test_the_roles_are_what_the_code_calls():
    """Each verb that a worker sends is among the worker's, and each of the operators' planes."""
    package = ROOT / "django_emq"
    worker = "".join(p.read_text() for p in [*package.glob("worker/*.py"), package / "reaper.py"])
    sent = set(re.findall(r"scripts\.([a-z]+)\(", worker)) & set(scripts.SCRIPTS)
    assert {"claim", "beat", "reap", "extend"} <= sent
    assert sent <= set(rights.WORKER)
    pages = "".join(p.read_text() for p in [*package.glob("admin/*.py"), package / "whole.py"])
    acts = set(re.findall(r"scripts\.([a-z]+)\b", pages)) & set(scripts.SCRIPTS)
    assert {"pause", "update"} <= acts
    assert acts <= set(rights.OPERATOR)


def test_a_producer_enqueues(client, user, queue):
    """Now, later and many; and nothing else."""
    user("producer")
    job = tasks.mark.using(queue=queue).enqueue(1)
    tasks.mark.using(queue=queue, run_in=60, priority=3).enqueue(2)
    emq.enqueue_many(tasks.mark.using(queue=queue).job(n) for n in range(20))
    with pytest.raises(ServerError):
        scripts.remove(connections.client(), queue, [job.id])
    with pytest.raises(ServerRefused):
        connections.client().read(lambda raw: raw.set("other", "x"))
    books_balance(client, queue)


def test_a_worker_works(client, user, server, queue, probe):
    """All ends that a job can have, results, delays and jobs of jobs; with a supervisor."""
    jobs = {
        "completed": [tasks.mark.using(queue=queue).enqueue(n) for n in range(3)],
        "kept": [verdicts.echo.using(queue=queue).enqueue(7)],
    }
    tasks.mark.using(queue=queue, run_in=0.2).enqueue("later")
    url = user("worker")
    with Worker(queue, EMQ_URL=url) as worker:
        worker.wait_ready()
        wait_until(lambda: inspector.totals(client, queue).get("completed") == 5, what="the jobs")
        assert inspector.workers(client)
        worker.terminate()
        assert worker.wait() == 0, worker.output
    assert "refuses" not in worker.output
    assert inspector.state(client, queue, jobs["kept"][0].id) == "done"


def test_each_verb_of_a_worker_is_allowed(client, user, queue):
    """Also those that a short run does not send."""
    from tests.operator_cases import HOLDERS

    held = {name: job_in(client, queue, "active") for name in HOLDERS}
    lapsed = job_in(client, queue, "lapsed")
    user("worker")
    own = connections.client()
    for name, verb in HOLDERS.items():
        verb(own, queue, held[name], 1)
    assert scripts.reap(own, queue, max_stalls=9).returned == [lapsed]
    scripts.promote(own, queue)
    scripts.trim(own, queue, dead_max=0, dead_ttl_ms=0)
    scripts.beat(own, "w", ttl_ms=1000, facts={"pid": 1})
    books_balance(client, queue)


def test_an_operator_reads_and_acts(client, user, queue):
    """All verbs, all reads, all commands."""
    ids = {state: job_in(client, queue, state) for state in ("dead", "scheduled", "active", "done")}
    scripts.register(client, [queue])
    user("operator")
    own = connections.client()
    assert scripts.pause(own, queue, by="ada")
    assert scripts.resume(own, queue)
    assert scripts.reprocess(own, queue, [ids["dead"]]) == [1]
    assert scripts.requeue(own, queue, [ids["scheduled"]]) == [1]
    assert scripts.cancel(own, queue, [ids["active"]]) == [1]
    scripts.update(own, queue, ids["dead"], "{}")
    assert scripts.remove(own, queue, [ids["done"]]) == [1]
    assert inspector.server(own).refused == []
    assert inspector.queues(own) == [queue]
    assert inspector.page(own, queue, "pending").total == 2
    assert inspector.why(own, queue, ids["dead"]).state == "pending"
    assert list(inspector.audit(own)) == []
    inspector.find(own, queue, "pending", inspector.Filter(task="x"))
    inspector.held(own, [queue])
    inspector.last_hour(own, [queue])
    inspector.morgue(own, [queue])
    for name, args in (("emq_stats", []), ("emq_why", [ids["dead"]]), ("emq_fsck", ["--repair"])):
        call_command(name, *args, stdout=io.StringIO(), stderr=io.StringIO())
    assert scripts.drain(own, queue, "dead") == 1
    scripts.pause(own, queue)
    assert scripts.obliterate(own, queue) is False
    assert not [f for f in doctor.examine(own, inspector.server(own), role="operator")
                if str(f.id) in ("django_emq.D040", "django_emq.D041")]  # fmt: skip


def test_a_page_as_the_operator(client, user, queue, db):
    """The admin's pages, as that user."""
    from django.contrib.auth.models import User
    from django.test import Client as Browser

    from tests.admin.yard import make_yard, url

    yard = make_yard(client, queue)
    user("operator")
    browser = Browser()
    browser.force_login(User.objects.create_superuser("anna"))
    for view in ("queue_changelist", "morgue_changelist", "worker_changelist", "server_changelist"):
        assert browser.get(url(view)).status_code == 200
    assert browser.get(url("queue_change", queue=queue)).status_code == 200
    job = browser.get(url("queue_job", queue=queue, job_id=yard.dead[0]))
    assert job.status_code == 200


GRANTED = [
    (role, rule)
    for role in RULES
    for rule in RULES[role]
    if rule[0] in "+~&" and rule not in ("+select", "+evalsha") and (role, rule[0]) != (
        "producer", "&"
    ) and (role, rule[0]) != ("operator", "&")
]  # fmt: skip


def test_each_missing_right_is_named(user, queue):
    """In a sentence that says what to grant."""
    assert len(GRANTED) > 60
    for role, rule in GRANTED:
        user(role, without=rule)
        (sentence,) = rights.missing(connections.client(), [queue], VERBS[role])
        assert sentence.startswith(f"The server's user 'emq-{role}' may not "), sentence
        grant = sentence.partition(". Give it ")[2].split()
        assert rule in grant, (rule, sentence)
        if rule[0] == "+":
            assert [name for name in grant if name[0] == "+"] == [rule], sentence


@pytest.mark.parametrize("rule", ["+zadd", "+blpop", "~emq:*", "~{emq}:*", "+evalsha"])
def test_a_worker_without_a_right_does_not_start(client, user, queue, rule):
    """It names the right, takes no job, and leaves everything as it was."""
    job = tasks.mark.using(queue=queue).enqueue(1)
    before = {key: client.raw.dump(key) for key in client.raw.keys("*")}
    url = user("worker", without=rule)
    with Worker(queue, EMQ_URL=url) as worker:
        assert worker.wait() == 1, worker.output
    assert "The worker cannot start: " in worker.output
    assert rule[1:].removesuffix(":*") in worker.output.lower()
    assert {key: client.raw.dump(key) for key in client.raw.keys("*")} == before
    assert inspector.state(client, queue, job.id) == "pending"


@pytest.mark.parametrize(
    ("rule", "args"),
    [
        ("+zadd", ()),
        ("+zremrangebyrank", ("mail",)),
        ("+smembers", ()),
        ("~emq:*", ("mail",)),
        ("~{emq}:*", ("mail",)),
        ("+evalsha", ()),
    ],
)
def test_a_reaper_without_a_right_does_not_start(redis, client, user, queue, rule, args):
    """It names the right and has swept nothing; also when only its last step would need it."""
    job_in(client, queue, "lapsed")
    scripts.register(client, [queue])
    before = {key: client.raw.dump(key) for key in client.raw.keys("*")}
    extra = rule == "+smembers"  # which a reaper needs and a worker does not
    user("worker", without="" if extra else rule)
    if not extra:
        redis.execute_command("ACL", "SETUSER", "emq-worker", "+smembers")
    with pytest.raises(CommandError) as caught:
        call_command("emq_reaper", *args, "--once", stdout=io.StringIO())
    said = str(caught.value)
    assert said.startswith("The reaper cannot start: ")
    assert rule[1:].removesuffix(":*") in said.lower()
    assert {key: client.raw.dump(key) for key in client.raw.keys("*")} == before


@pytest.mark.parametrize("named", [True, False])
def test_a_reaper_needs_no_more_than_it_sweeps_with(redis, client, user, queue, named):
    """Not what a worker claims and settles with, and no right to list queues that are named."""
    job_id = job_in(client, queue, "lapsed")
    scripts.register(client, [queue])
    user("worker", without="+zmscore")
    keys = f"~emq:{{{queue}}}:*"
    more = [keys] if named else [keys, "+smembers"]
    redis.execute_command("ACL", "SETUSER", "emq-worker", "resetkeys", "~{emq}:*", *more)
    out = io.StringIO()
    call_command("emq_reaper", *([queue] if named else []), "--once", stdout=out)
    assert out.getvalue().startswith("reaped 1, ")
    assert inspector.state(client, queue, job_id) == "pending"


def test_a_reaper_of_another_version_does_not_start(redis, client, queue):
    """It would move rows that it does not understand."""
    job_in(client, queue, "lapsed")
    redis.set("{emq}:version", "django_emq:99")
    for args in ((), (queue,)):
        with pytest.raises(CommandError, match="The reaper cannot start: .*django_emq:99"):
            call_command("emq_reaper", *args, "--once", stdout=io.StringIO())
    assert inspector.counts(client, queue)["active"] == 1


def test_a_user_of_one_queue(redis, client, user, queue):
    """Serves that one, and is told of the others."""
    url = user("worker", without="~emq:*")
    redis.execute_command("ACL", "SETUSER", "emq-worker", f"~emq:{{{queue}}}:*")
    assert url
    own = connections.client()
    assert rights.missing(own, [queue], rights.WORKER) == []
    (sentence,) = rights.missing(own, [queue, "other"], rights.WORKER)
    assert "emq:{other}:pending" in sentence


def test_the_doctor_tells_what_is_missing(user, queue):
    """As a finding, with the command that grants it."""
    user("worker", without="+zadd")
    found = doctor.examine(connections.client(), inspector.server(connections.client()))
    (finding,) = (f for f in found if str(f.id) == "django_emq.D040")
    assert "may not call ZADD" in finding.msg
    assert finding.hint == "ACL SETUSER emq-worker +zadd."


def test_a_producer_of_unique_jobs_needs_more(client, user, redis, queue):
    """What the page names besides is what is missing, and no more than that."""
    user("producer")
    task = unique.sync.using(queue=queue)
    task.enqueue(1)
    with pytest.raises(ServerError):
        task.enqueue(1)
    besides = re.search(r"enqueues \[unique jobs\].*?besides", PAGE, re.DOTALL)
    assert besides is not None
    rules = re.findall(r"`(\+\w+)`", besides[0])
    redis.execute_command("ACL", "SETUSER", "emq-producer", *rules)
    wanted = {f"+{name.lower()}" for name in rights.commands(("enqueue_unique",))}
    assert set(rules) == wanted - set(RULES["producer"])
    assert task.enqueue(1).status in ("enqueued", "duplicate")
    assert task.using(on_conflict="replace").enqueue(1).status == "replaced"


def test_a_producer_that_waits_needs_more(client, user, redis, queue):
    """To be told of the end of a job, and to look at what came out of it."""
    user("producer")
    job = tasks.mark.using(queue=queue).enqueue(1)
    with pytest.raises(ServerError):
        job.result()
    besides = re.search(r"reads results.*?One that", PAGE, re.DOTALL)
    assert besides is not None
    rules = re.findall(r"`(\+\w+)`", besides[0])
    redis.execute_command("ACL", "SETUSER", "emq-producer", *rules)
    for find in (job.result, lambda: emq.result(job.id)):
        with pytest.raises(emq.NotFinished):
            find().wait(0.01)
    assert "waiters" in inspector.row(client, queue, job.id)
