"""Who relays, what people see of an outbox, and what the checks say."""

import json
import threading
from datetime import timedelta

import pytest
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.db import OperationalError
from django.db import connections as databases
from django.urls import reverse
from django.utils import timezone

import django_emq as emq
from django_emq import doctor, registry, relay
from django_emq.models import Outbox
from django_emq.relay import Relay
from tests import postgres
from tests.outbox.boxes import drain, on_sqlite, rows, work
from tests.probe import tasks
from tests.processes import Worker, wait_until
from tests.test_on_commit import stored
from tests.variant import variant

# -- who relays -------------------------------------------------------------------------------


def relays():
    return [thread for thread in threading.enumerate() if thread.name == "emq-relay"]


@on_sqlite
@pytest.mark.parametrize(
    ("setting", "aliases"),
    [
        ({}, ()),
        ({"OUTBOX": True}, ("default",)),
        ({"OUTBOX": "other"}, ("other",)),
        ({"OUTBOX": "other", "QUEUES": {"a": {"OUTBOX": True}}}, ("other", "default")),
    ],
)
def test_who_is_watched(client, settings, monkeypatch, setting, aliases):
    """What the settings name, and nothing where they name none: no query and no thread."""
    settings.EMQ = {**settings.EMQ, **setting}
    assert relay.watched() == aliases
    monkeypatch.setattr(Relay, "run", lambda self: self._stop.wait())
    with relay.relaying(client):
        assert len(relays()) == bool(aliases)
    with relay.relaying(client, enabled=False):
        assert relays() == []


@on_sqlite
@pytest.mark.parametrize("command", ["emq_relay", "emq_reaper"])
def test_once(client, settings, alias, task, left, command, capsys):
    """For cron: all that waits is pushed, by either command."""
    settings.EMQ = {**settings.EMQ, "OUTBOX": True}
    made = emq.enqueue_many(task.using(queue=f"q{i}").job(i) for i in range(3))
    call_command(command, "--once")
    assert rows(alias) == []
    assert [work(client, f"q{i}") for i in range(3)] == [[job.id] for job in made]
    if command == "emq_relay":
        assert capsys.readouterr().out == "pushed 3 rows\n"


@on_sqlite
@pytest.mark.parametrize("command", ["emq_relay", "emq_reaper", "emq_worker"])
def test_processes_that_relay(client, alias, task, left, probe, command):
    """A worker's housekeeping, the reaper, and the relay push what a crash left, and stop."""
    job = task.enqueue("left over")
    options = ["--database", "default"] if command == "emq_relay" else []
    env = variant(EMQ={"OUTBOX": True})
    with Worker(*options, command=command, **env) as process:
        wait_until(lambda: rows(alias) == [])
        if command == "emq_worker":
            assert probe.wait_for(1) == ["left over"]
        else:
            assert stored(client) == [job.id]
        process.wait_for("ready")
        process.terminate()
        assert process.wait() == 0, process.output


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_a_database_that_cannot_be_read(client, alias, task, left, caplog):
    """The relay says so once, goes on with the others, and says when it is back."""
    caplog.set_level("INFO")
    made = [task.enqueue(1), tasks.mark.using(outbox="other").enqueue(2)]
    one = Relay(client, ("other", alias))

    def rename(old, new):
        with databases["other"].cursor() as cursor:
            cursor.execute(f"alter table {old} rename to {new}")

    rename("django_emq_outbox", "elsewhere")
    try:
        one.run_once()
        one.run_once()
    finally:
        rename("elsewhere", "django_emq_outbox")
    assert stored(client) == [made[0].id]
    one.run_once()
    assert stored(client) == [job.id for job in made]
    told = [line for line in caplog.messages if line.startswith("relay: ")]
    assert len(told) == 2
    assert "the outbox of database other cannot be read" in told[0]
    assert "the outbox of database other is back" in told[1]


# -- what people see --------------------------------------------------------------------------


@on_sqlite
def test_stats_doctor_and_admin(client, settings, alias, task, left, capsys, admin_client):
    """Rows that wait, and the oldest; without an outbox nothing is said of it."""
    call_command("emq_stats")
    assert "outbox" not in capsys.readouterr().out
    assert list(doctor.outboxes()) == []
    settings.EMQ = {**settings.EMQ, "OUTBOX": True}
    emq.enqueue_many(task.job("secret stuff") for _ in range(3))
    call_command("emq_stats")
    assert "outbox of default: 1 rows, 3 jobs, the oldest 0." in capsys.readouterr().out
    call_command("emq_stats", "--json")
    (told,) = json.loads(capsys.readouterr().out)["outboxes"]
    assert (told["database"], told["rows"], told["jobs"]) == ("default", 1, 3)
    assert list(doctor.outboxes()) == []
    Outbox.objects.update(stored_at=timezone.now() - timedelta(hours=2))
    (finding,) = doctor.outboxes()
    assert finding.id == "django_emq.D060"
    assert "the oldest for 2.0 h" in finding.msg
    page = admin_client.get(reverse("admin:django_emq_outbox_changelist"))
    assert page.status_code == 200
    row = admin_client.get(reverse("admin:django_emq_outbox_change", args=[rows(alias)[0].id]))
    for content in (page.content.decode(), row.content.decode()):
        assert str(rows(alias)[0].id) in content
        assert "secret stuff" not in content
    assert admin_client.get(reverse("admin:django_emq_outbox_add")).status_code == 403


# -- checks -----------------------------------------------------------------------------------


class NoTable:
    """A router that keeps the outbox out of one database."""

    def allow_migrate(self, db, app_label, **hints):
        return None if db != "other" else False


def checked(tag, **options):
    return [(one.id, one.msg) for one in run_checks(tags=[tag], **options)]


def test_an_alias_that_is_none(settings):
    """E011 for a setting, E015 for a task."""
    settings.EMQ = {**settings.EMQ, "OUTBOX": "orders"}
    ((found, sentence),) = checked("emq")
    assert found == "django_emq.E011"
    assert "Give True, False, or an alias in DATABASES: 'default', 'other'" in sentence
    settings.EMQ = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_tasks", {"a": tasks.mark.using(on_commit="orders")})
        ((found, sentence),) = checked("emq")
    assert found == "django_emq.E015"
    assert "has on_commit='orders'. There is no database 'orders' in DATABASES." in sentence


def test_a_router_that_does_not_let_the_table_in(settings):
    """E014: each enqueue would fail."""
    settings.EMQ = {**settings.EMQ, "OUTBOX": "other"}
    assert checked("emq") == []
    settings.DATABASE_ROUTERS = [NoTable()]
    ((found, _),) = checked("emq")
    assert found == "django_emq.E014"


@pytest.mark.postgresql
def test_a_table_that_is_not_there(cluster, settings, django_db_blocker, capsys):
    """W006 with `check --database`, and a sentence from emq_relay and the doctor."""
    with postgres.alias("bare", cluster, NAME="template1"), django_db_blocker.unblock():
        settings.EMQ = {**settings.EMQ, "OUTBOX": "bare"}
        found = checked("database", databases=["bare"])
        assert [one for one, _ in found] == ["django_emq.W006"]
        assert checked("database", databases=["default"]) == []
        with pytest.raises(CommandError, match="has no outbox: run manage.py migrate django_emq"):
            call_command("emq_relay", "--once")
        (finding,) = doctor.outboxes()
        assert finding.id == "django_emq.D061"
        call_command("emq_stats")
        assert "outbox of bare: cannot be read: " in capsys.readouterr().out


@on_sqlite
def test_a_relay_that_gives_way_goes_on(client, task, left):
    """MySQL ends one of two transactions that wait for each other: its rows are pushed again."""
    ids = [task.enqueue(i).id for i in range(3)]
    lost = []

    def deadlock(execute, sql, *args):
        if sql.startswith("DELETE") and len(lost) < 2:
            lost.append(sql)
            raise OperationalError("Deadlock found when trying to get lock")
        return execute(sql, *args)

    with databases["default"].execute_wrapper(deadlock):
        assert drain(client, "default") == 3
    assert len(lost) == 2
    assert work(client) == ids
    assert rows("default") == []


@on_sqlite
def test_a_relay_does_not_insist(client, task, left):
    """On a database that refuses everything, which is told as before."""
    task.enqueue(1)

    def refuse(execute, sql, *args):
        raise OperationalError("go away")

    with (
        databases["default"].execute_wrapper(refuse),
        pytest.raises(OperationalError, match="go away"),
    ):
        drain(client, "default")
    assert len(rows("default")) == 1
