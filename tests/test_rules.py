"""When a schedule fires: gaps and folds of the clock, time after time, what is missed."""

from datetime import UTC, datetime

import pytest

from django_emq import rules
from django_emq.exceptions import InvalidOption
from django_emq.plans import Plan
from django_emq.rules import Cron, Every, coming, fires


def ms(text: str) -> int:
    """A time given as ``2026-03-27 12:00``, by UTC."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def shown(times: list[int]) -> list[str]:
    """Times as ``03-28 05:00``, by UTC."""
    return [f"{rules.instant(time):%m-%d %H:%M}" for time in times]


def test_B39_daily_job_at_a_clock_change():
    """06:00 in Berlin is 06:00 in Berlin, before and after both changes of the clock."""
    rule = Cron("0 6 * * *", "Europe/Berlin")
    spring = coming(rule, ms("2026-03-27 12:00"), 3)
    assert shown(spring) == ["03-28 05:00", "03-29 04:00", "03-30 04:00"]
    autumn = coming(rule, ms("2026-10-23 12:00"), 3)
    assert shown(autumn) == ["10-24 04:00", "10-25 05:00", "10-26 05:00"]


def test_B40_time_of_day_that_does_not_exist_or_exists_twice():
    """02:30 in Berlin: once at the end of the gap, and once, the first time, in the fold."""
    rule = Cron("30 2 * * *", "Europe/Berlin")
    spring = coming(rule, ms("2026-03-27 12:00"), 3)
    assert shown(spring) == ["03-28 01:30", "03-29 01:00", "03-30 00:30"]
    autumn = coming(rule, ms("2026-10-23 12:00"), 3)
    assert shown(autumn) == ["10-24 00:30", "10-25 00:30", "10-26 01:30"]


def test_B42_hourly_job_when_the_clock_goes_back():
    """An hourly rule fires once in each hour that passes."""
    rule = Cron("0 * * * *", "US/Pacific")
    assert shown(coming(rule, ms("2026-11-01 07:30"), 3)) == [
        "11-01 08:00",
        "11-01 09:00",
        "11-01 10:00",
    ]


def test_B43_the_zone_is_that_of_the_project(settings, monkeypatch):
    """A rule without a zone is read in TIME_ZONE, whatever the process thinks; others in their own.

    That the admin shows both times is in tests/admin/test_schedules.py.
    """
    settings.TIME_ZONE, settings.USE_TZ = "Asia/Jakarta", True
    monkeypatch.setenv("TZ", "UTC")
    plan = Plan(task="t", cron="25 8 * * *")
    start = ms("2026-09-10 00:00")
    assert shown(coming(plan.rule, start, 1)) == ["09-10 01:25"]
    own = Plan(task="t", cron="25 8 * * *", tz="Europe/Berlin")
    assert shown(coming(own.rule, start, 1)) == ["09-10 06:25"]


@pytest.mark.parametrize("minute", [0, 5, 15, 30, 45, 59])
def test_a_time_is_never_followed_by_one_before_it(minute):
    """Also when it is asked for inside the hour that comes twice."""
    rule = Cron("30 2 * * *", "Europe/Berlin")
    for hour in (0, 1):
        now = ms(f"2026-10-25 0{hour}:{minute:02}")
        assert rule.first(now) > now


@pytest.mark.parametrize(
    "cron", ["*/5 * * * *", "30 2 * * *", "0,30 2 * * *", "15 2,3 * * *", "*/20 1-3 * * *"]
)
@pytest.mark.parametrize("night", ["2026-03-28 20:00", "2026-10-24 20:00"])
def test_the_newest_times_are_those_that_follow_each_other(cron, night):
    """Looking back from any minute of the night finds what went forth from the evening."""
    rule = Cron(cron, "Europe/Berlin")
    planned = rule.first(ms(night))
    forth = [planned]
    while forth[-1] < planned + 14 * 3_600_000:
        forth.append(rule.after(forth[-1]))
    for now in range(planned, planned + 12 * 3_600_000, 41 * 60_000):
        past = [tick for tick in forth if tick <= now]
        assert rule.newest(planned, now, 1) == past[-1:]
        assert rule.newest(planned, now, 7) == past[-7:]


def test_a_long_outage_costs_few_steps():
    """Of a rule that fires each second, ten years late, the newest hundred are found at once."""
    rule = Cron("* * * * * *", "Europe/Berlin")
    now = ms("2026-06-01 00:00")
    times = rule.newest(ms("2016-06-01 00:00"), now, 100)
    assert times == [now - 1000 * n for n in range(99, -1, -1)]


def test_a_rare_rule_is_found_too():
    """The windows in which the newest times are looked for grow until one is found."""
    rule = Cron("0 0 29 2 *", "UTC")
    times = rule.newest(ms("2020-02-29 00:00"), ms("2027-01-01 00:00"), 2)
    assert times == [ms("2020-02-29 00:00"), ms("2024-02-29 00:00")]


EVERY = Every(300_000)
FIVE = Cron("*/5 * * * *", "UTC")


@pytest.mark.parametrize("rule", [EVERY, FIVE])
@pytest.mark.parametrize(("misfire", "count"), [("fire_once", 1), ("skip", 0), ("fire_all", 73)])
def test_what_is_made_of_an_outage(rule, misfire, count):
    """Six hours, to two minutes after a time: the newest one, none, or all; then the next one."""
    planned, now = ms("2026-06-01 06:00"), ms("2026-06-01 12:02")
    times, following = fires(rule, misfire, planned, now)
    assert len(times) == count
    assert times == sorted(set(times))
    assert not times or times[-1] == ms("2026-06-01 12:00")
    assert following == ms("2026-06-01 12:05")


def test_all_is_bounded():
    """A day of a rule of five minutes: the newest hundred of 289."""
    times, _ = fires(FIVE, "fire_all", ms("2026-06-01 00:00"), ms("2026-06-02 00:00"))
    assert times[0] == ms("2026-06-02 00:00") - 99 * 300_000
    assert len(times) == rules.ALL_MAX


@pytest.mark.parametrize("misfire", rules.MISFIRES)
@pytest.mark.parametrize("late", [0, 900, 59_000])
def test_a_time_that_is_a_little_late_is_kept(misfire, late):
    """A worker that wakes late has missed nothing, by any rule."""
    planned = ms("2026-06-01 06:00")
    assert fires(FIVE, misfire, planned, planned + late) == ([planned], planned + 300_000)


@pytest.mark.parametrize(
    ("word", "times"),
    [
        ("@hourly", ["06-01 13:00", "06-01 14:00"]),
        ("@daily", ["06-02 00:00", "06-03 00:00"]),
        ("@Midnight", ["06-02 00:00", "06-03 00:00"]),
        ("@weekly", ["06-07 00:00", "06-14 00:00"]),
        ("@monthly", ["07-01 00:00", "08-01 00:00"]),
        ("@yearly", ["01-01 00:00", "01-01 00:00"]),
        ("@annually", ["01-01 00:00", "01-01 00:00"]),
    ],
)
def test_words(word, times):
    """The words of crontab."""
    assert shown(coming(Cron(word, "UTC"), ms("2026-06-01 12:00"), 2)) == times


def test_a_period_is_counted_from_1970():
    """So it is the same for every process, whenever it was started."""
    assert shown(coming(Every(600_000), ms("2026-06-01 12:03"), 2)) == [
        "06-01 12:10",
        "06-01 12:20",
    ]


@pytest.mark.parametrize(
    ("cron", "tz", "said"),
    [
        ("every day", "UTC", "Wrong number of fields"),
        ("61 * * * *", "UTC", "Bad minute"),
        ("@reboot", "UTC", "cannot be read"),
        ("0 0 30 2 *", "UTC", "cannot be read: Bad day-of-month"),
        ("0 6 * * *", "Europe/Berlyn", "no time zone 'Europe/Berlyn'"),
        ("0 6 * * *", "../etc/passwd", "no time zone"),
        ("0 6 * * *", "", "no time zone"),
    ],
)
def test_what_cannot_be_read_is_said(cron, tz, said):
    """With the thing, the fact and the way out."""
    with pytest.raises(InvalidOption, match=said):
        Cron(cron, tz)


@pytest.mark.parametrize("period", [0, 999, -1000, 367 * 86_400_000])
def test_periods_have_bounds(period):
    """A second up to a year."""
    with pytest.raises(InvalidOption, match="Use 1 second up to 366 days"):
        Every(period)
