"""The table of docs/schedules.md on the two nights in which the clock is changed."""

import re

from django_emq.rules import Cron, coming, instant
from tests.processes import ROOT
from tests.test_docs import rows
from tests.test_rules import ms

PAGE = (ROOT / "docs" / "schedules.md").read_text()
NIGHTS = [cells for cells in rows(PAGE) if re.fullmatch(r"`[\d*/, ]+`", cells[0])]


def times(cron: str, start: str, hours: int) -> list[str]:
    """The times of a day of so many hours that begins at an instant, by UTC, as Berlin's clock."""
    rule = Cron(cron, "Europe/Berlin")
    first = ms(start) - 1000
    found = [tick for tick in coming(rule, first, 30) if tick < first + hours * 3_600_000]
    return [f"{instant(tick).astimezone(rule._zone):%H:%M}" for tick in found]


SAID = {
    "once, at 03:00, the end of the gap": ["03:00"],
    "once, at 03:00": ["03:00"],
    "once, the first time": ["02:30"],
    "once, at 06:00": ["06:00"],
    "02:00 the first time, and 03:00": ["02:00", "03:00"],
    "not at all": [],
    "four times": ["02:00", "02:30", "02:00", "02:30"],
    "twice": ["02:30", "02:30"],
}


def test_what_the_page_says_of_the_two_nights():
    """Each cell is what the rule does: so many times, at these."""
    assert len(NIGHTS) == 6
    for cron, spring, autumn in NIGHTS:
        for said, start, hours in (
            (spring, "2026-03-28 23:00", 23),
            (autumn, "2026-10-24 22:00", 25),
        ):
            found = times(cron.strip("`"), start, hours)
            count = re.match(r"(\d+) times: once in each hour", said)
            if count:
                assert len(found) == int(count[1]) == hours, cron
            else:
                assert found == SAID[said], (cron, said)


def test_the_first_time_of_a_fold_is_the_earlier_one():
    """02:30 of the 25th of October by summer time."""
    rule = Cron("30 2 * * *", "Europe/Berlin")
    assert coming(rule, ms("2026-10-24 22:00"), 1) == [ms("2026-10-25 00:30")]
