"""Schedules in the admin: what is shown, the editor, the buttons, and who may press them."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.test import TestCase

from django_emq import connections, inspector, scripts, stored
from django_emq.keys import queue_keys
from django_emq.models import Schedule
from django_emq.ticker import Ticker, now_ms
from tests.admin.yard import texts, url
from tests.conformance.wire import claim_some, members
from tests.helpers import point_at

pytestmark = pytest.mark.django_db
MARK = "tests.probe.tasks.mark"
VIEWER = ("view_schedule", "view_queue")
KEEPER = (*VIEWER, "add_schedule", "change_schedule", "delete_schedule", "operate_schedule")


@pytest.fixture
def declared(settings, client, queue):
    """A schedule of the code: 08:25 in Jakarta."""
    plan = {"task": MARK, "cron": "25 8 * * *", "queue": queue, "args": [1], "owner": "team ops"}
    settings.TIME_ZONE = "Asia/Jakarta"
    settings.EMQ = {**settings.EMQ, "SCHEDULES": {"early": plan}}
    Ticker(connections.client()).declare([queue])


def kept(queue, **fields):
    """A row that somebody saves, and commits."""
    with TestCase.captureOnCommitCallbacks(execute=True):
        return Schedule.objects.create(
            **{"name": "kept", "task": MARK, "args": [2], "every": 60, "queue": queue, **fields}
        )


def save(row):
    """Save it, and commit."""
    with TestCase.captureOnCommitCallbacks(execute=True):
        row.save()


def post(browser, *args, **options):
    """Send a form; its request commits."""
    with TestCase.captureOnCommitCallbacks(execute=True):
        return browser.post(*args, **options)


def call(*args):
    """Run the command, which commits."""
    with TestCase.captureOnCommitCallbacks(execute=True):
        call_command("emq_schedules", *args)


def form(where, **fields):
    """What the editor sends."""
    return {
        "name": "kept", "task": MARK, "args": "[2]", "kwargs": "{}", "every": "60", "queue": where,
        "misfire": "fire_once", "enabled": "on", **fields,
    }  # fmt: skip


def shown(browser):
    return browser.get(url("schedule_changelist")).content.decode()


def test_the_list_shows_local_and_utc_times(account, declared, queue):
    """Also the zone of the project, where the rule names none; the next five of them."""
    text = shown(account(*VIEWER))
    (one,) = inspector.schedules(connections.client())
    assert len(one.said) == 5
    for said, utc in zip(one.said, one.coming, strict=True):
        local = utc.astimezone(ZoneInfo("Asia/Jakarta"))
        assert (local.hour, local.minute, utc.hour) == (8, 25, 1)
        assert said == f"{local:%Y-%m-%d} 08:25:00 WIB (01:25:00 UTC)"
        assert said in text
    night = replace(one, coming=[datetime(2026, 1, 1, 20, tzinfo=UTC)])  # there it is tomorrow
    assert night.said == ["2026-01-02 03:00:00 WIB (2026-01-01 20:00:00 UTC)"]
    for word in ("early", MARK, queue, "25 8 * * * (Asia/Jakarta)", "team ops", "in the code"):
        assert word in text


def test_without_the_right_no_button(account, declared, queue):
    """And no way past the missing button."""
    viewer = account(*VIEWER)
    assert "Switch off" not in shown(viewer)
    assert "Add a schedule" not in shown(viewer)
    fields = {"name": "early", "queue": queue, "to": "off"}
    assert viewer.post(url("schedule_act"), fields).status_code == 403
    assert viewer.get(url("schedule_act")).status_code in (403, 405)
    assert viewer.get(url("schedule_add")).status_code == 403
    nobody = account("view_queue", name="nobody")
    assert nobody.get(url("schedule_changelist")).status_code == 403
    assert inspector.schedules(connections.client())[0].enabled


def test_switch_and_run_now(account, client, declared, queue):
    """One of the code: off, on, and a job now, with a link to it."""
    keeper = account(*KEEPER)

    def press(to):
        fields = {"name": "early", "queue": queue, "to": to}
        return post(keeper, url("schedule_act"), fields, follow=True)

    (before,) = members(client, queue, "repeat").values()
    assert texts(press("off")) == ["Schedule 'early' is off."]
    assert "by anna" in shown(keeper)
    assert members(client, queue, "repeat") == {"early": float("inf")}
    answer = press("run")
    (job,) = claim_some(client, queue, 5)
    assert texts(answer) == [f"Schedule 'early' was run: job {job.id.decode()}."]
    assert url("queue_job", queue=queue, job_id=job.id.decode()) in answer.content.decode()
    assert texts(press("on")) == ["Schedule 'early' is on."]
    assert members(client, queue, "repeat") == {"early": before}
    assert press("explode").status_code == 400
    scripts.repeat_cancel(client, queue, "early")
    assert texts(press("on")) == ["There is no schedule 'early' any more."]


def test_a_row_is_added_changed_and_deleted(account, client, queue):
    """By the editor; the server follows after each commit. Who adds one answers for it."""
    scripts.register(client, [queue])
    keeper = account(*KEEPER)
    answer = post(keeper, url("schedule_add"), form(queue), follow=True)
    assert answer.status_code == 200
    row = Schedule.objects.get()
    assert row.owner == "anna"
    (one,) = inspector.schedules(client, [queue])
    assert (one.source, one.task, one.times) == ("database", MARK, "every 0:01:00")
    change = url("schedule_change", object_id=str(row.pk))
    assert one.said[0] in keeper.get(change).content.decode()

    post(keeper, change, form(queue, every="", cron="0 6 * * *", tz="Europe/Berlin"), follow=True)
    (one,) = inspector.schedules(client, [queue])
    assert one.times == "0 6 * * * (Europe/Berlin)"
    post(keeper, change, form(queue, every="3600", enabled=""), follow=True)
    (one,) = inspector.schedules(client, [queue])
    assert not one.enabled
    post(keeper, url("schedule_delete", object_id=str(row.pk)), {"post": "yes"}, follow=True)
    assert inspector.schedules(client, [queue]) == []
    assert not Schedule.objects.exists()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"cron": "@daily"}, "either a cron expression or a period"),
        ({"every": ""}, "either a cron expression or a period"),
        ({"every": "", "cron": "61 * * * *"}, "Bad minute"),
        ({"every": "", "cron": "@daily", "tz": "Mars"}, "no time zone"),
        ({"task": "tests.probe.tasks.marc"}, "Did you mean"),
        ({"args": '{"a": 1}'}, "args must be a list"),
        ({"queue": "a b"}, "is not allowed"),
        ({"priority": "101"}, "from -100 to 100"),
        ({"name": "early"}, "The code has a schedule"),
    ],
)
def test_the_editor_refuses_what_cannot_be_kept(account, client, declared, queue, fields, said):
    """In the words of the queue, and nothing is entered."""
    page = account(*KEEPER).post(url("schedule_add"), form(queue, **fields))
    assert said in page.content.decode()
    assert not Schedule.objects.exists()
    assert list(members(client, queue, "repeat")) == ["early"]


def test_a_switched_row_stays_so_when_it_is_saved(account, client, queue):
    """The button and the editor say the same."""
    row = kept(queue)
    keeper = account(*KEEPER)
    fields = {"name": "kept", "queue": queue, "to": "off"}
    post(keeper, url("schedule_act"), fields)
    row.refresh_from_db()
    assert not row.enabled
    save(row)
    assert members(client, queue, "repeat") == {"kept": float("inf")}
    post(keeper, url("schedule_act"), {**fields, "to": "on"})
    assert members(client, queue, "repeat")["kept"] % 60_000 == 0


def test_another_queue(client, queue):
    """The schedule moves with the row."""
    row = kept(queue)
    row.queue = f"{queue}-other"
    save(row)
    assert members(client, queue, "repeat") == {}
    assert list(members(client, row.queue, "repeat")) == ["kept"]


def test_an_old_row_does_not_replace_a_newer_one(client, queue):
    """Two saves whose commits are followed in the other order."""
    row = kept(queue)
    old = Schedule.objects.get()
    row.every = 120
    save(row)
    old.updated_at = row.updated_at - timedelta(seconds=1)
    stored.enter(client, old)
    assert inspector.schedules(client, [queue])[0].times == "every 0:02:00"


def test_the_server_has_lost_them(account, client, redis, queue, capsys):
    """The list names them, and --sync enters them; and removes what has no row any more."""
    kept(queue)
    redis.flushdb()
    connections.reset()
    assert "the server does not know them" in shown(account(*KEEPER))
    call_command("emq_schedules", "--sync")
    Schedule.objects.bulk_create([Schedule(name="other", task=MARK, every=60, queue=queue)])
    Schedule.objects.filter(name="kept").update(name="renamed")
    call_command("emq_schedules", "--sync")
    assert capsys.readouterr().out.splitlines() == [
        "1 entered or changed, 0 removed",
        "2 entered or changed, 1 removed",
    ]
    assert sorted(members(client, queue, "repeat")) == ["other", "renamed"]


def test_what_is_saved_during_a_sync_stays(client, queue):
    """It was not there when the rows were read."""
    kept(queue)
    before = now_ms(client) - 1000
    assert scripts.declare(client, queue, stored.SOURCE, [], since=before).removed == 0
    assert scripts.declare(client, queue, stored.SOURCE, [], since=before + 60_000).removed == 1


def test_the_server_is_away(account, settings, queue, tmp_path, caplog):
    """The row is saved, the log says what is missing, the list says that nobody answers."""
    point_at(settings, f"unix://{tmp_path}/nobody")
    keeper = account(*KEEPER)
    answer = post(keeper, url("schedule_add"), form(queue))
    assert answer.status_code == 302
    row = Schedule.objects.get()
    assert "schedule kept: what was saved is not on the server yet" in caplog.text
    assert keeper.get(url("schedule_changelist")).status_code == 503
    page = keeper.get(url("schedule_change", object_id=str(row.pk)))
    assert page.status_code == 200


def test_check_of_a_row():
    """What code saves is checked by `full_clean`, as everywhere in Django."""
    with pytest.raises(ValidationError, match="There is no task"):
        Schedule(name="x", task="no.such.task", every=60).full_clean()


# -- in a terminal ----------------------------------------------------------------------------


def test_the_command_lists(client, declared, queue, capsys):
    """Next times in both clocks, the last run; the same as JSON."""
    set_back = queue_keys(queue).repeat
    client.raw.zincrby(set_back, -86_400_000, "early")
    Ticker(connections.client()).tick(queue)
    call_command("emq_schedules")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "early"
    assert lines[1] == f"  {MARK} on {queue}, 25 8 * * * (Asia/Jakarta), by code"
    assert len([one for one in lines if "08:25:00 WIB" in one and "01:25:00 UTC" in one]) == 5
    (job,) = claim_some(client, queue, 5)
    assert lines[7].endswith(f"UTC  {job.id.decode()}")
    call_command("emq_schedules", "--json")
    (found,) = json.loads(capsys.readouterr().out)["schedules"]
    assert (found["name"], found["owner"], found["enabled"]) == ("early", "team ops", True)
    assert datetime.fromisoformat(found["last_planned"]) < datetime.now(UTC)
    assert len(found["next"]) == 5


def test_the_command_switches_and_runs(client, declared, queue, capsys):
    """One of the code, and a row, whose own word follows."""
    row = kept(queue)
    for name in ("early", "kept"):
        call("--disable", name)
        assert members(client, queue, "repeat")[name] == float("inf")
        call_command("emq_schedules", "--run-now", name)
    assert inspector.counts(client, queue)["pending"] == 2
    row.refresh_from_db()
    assert not row.enabled
    call("--enable", "kept")
    row.refresh_from_db()
    assert row.enabled
    call_command("emq_schedules")
    assert "early (switched off by emq_schedules)" in capsys.readouterr().out


def test_the_command_says_what_is_wrong(client, declared, queue):
    """A name that is not there; one that is there twice."""
    with pytest.raises(CommandError, match="There is no schedule 'late'. There are: early."):
        call_command("emq_schedules", "--run-now", "late")
    other = f"{queue}-other"
    scripts.register(client, [other])
    scripts.repeat_register(client, other, "early", every_ms=60_000, template="x", first_ms=0)
    with pytest.raises(CommandError, match=f"in the queues {queue}, {other}: name one by --queue"):
        call_command("emq_schedules", "--run-now", "early")
    call_command("emq_schedules", "--run-now", "early", "--queue", queue)
    assert inspector.counts(client, queue)["pending"] == 1
