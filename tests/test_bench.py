"""The benchmark works, and refuses to tell a figure of jobs that it has miscounted.

No test here looks at how fast anything was.
"""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from bench import lab
from bench.measures import KEYS, MEASURES
from bench.results import Results
from bench.tables import cells, fill_page
from django.core.management import CommandError, call_command

from tests.processes import ROOT, manage

PAGE = ROOT / "docs" / "benchmarks.md"
VALKEY = {"server": "valkey 9.1.0", "date": "2026-01-31"}


@pytest.mark.timeout(300)
def test_the_short_form(tmp_path: Path) -> None:
    """It takes every figure, counts every job once, keeps the figures and draws them."""
    kept, picture = tmp_path / "figures.json", tmp_path / "figures.svg"
    bench = manage("bench", "--quick", "--json", str(kept), "--plot", str(picture), seconds=280)

    assert bench.returncode == 0, bench.stderr
    body = json.loads(kept.read_text())
    assert set(body["figures"]) == set(KEYS)
    assert {"python", "django", "redis-py", "hiredis", "server", "cores"} <= set(body["facts"])
    assert [set(taken) for taken in body["rounds"]] == [{measure.name for measure in MEASURES}]
    assert body["figures"]["ceiling"]["values"][0] > 0
    assert "drain_1m" in picture.read_text()
    assert all(key in bench.stdout for key in KEYS)


@pytest.mark.parametrize(
    ("planted", "complaint"),
    [
        ([7], "1 ran more than once .job 7 for instance"),
        ([], "1,?999 jobs|1 jobs have not started"),
    ],
    ids=["twice", "missing"],
)
def test_a_miscount_is_no_figure(
    planted: list[int], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that runs twice, or not at all, makes the command fail, with a word on which."""
    honest = lab.enqueue

    def enqueue(task, jobs: Iterable[int]) -> None:
        honest(task, [*(job for job in jobs if job != 7), *(planted and [7, *planted])])

    monkeypatch.setattr(lab, "enqueue", enqueue)
    with pytest.raises(CommandError, match=complaint):
        call_command("bench", "--quick", "--only", "drain_1")


def test_an_unknown_figure() -> None:
    """A name that is not known is refused with those that are."""
    with pytest.raises(CommandError, match=r"no figure 'drian_1'\. Use: ceiling, drain_1"):
        call_command("bench", "--only", "drian_1")


def results(*rounds: dict, quick: bool = False, server: str = "valkey 9.1.0") -> dict:
    """The lines that come of some rounds, by figure."""
    made = Results({**VALKEY, "server": server}, {}, quick, list(rounds))
    return {line.figure.key: line for line in made.lines()}


def test_ratios_are_taken_in_each_round() -> None:
    """A figure is held against the other one of its own measure, or else of its own round."""
    lines = results(
        {"drain_1": {"ceiling": 100.0, "drain_1": 50.0}, "drain_2": {"ceiling": 9, "drain_2": 100}},
        {"drain_1": {"ceiling": 10.0, "drain_1": 20.0}, "drain_2": {"ceiling": 9, "drain_2": 20}},
        {"drain_1": {"ceiling": 30.0, "drain_1": 30.0}, "drain_2": {"ceiling": 9, "drain_2": 36}},
    )
    assert lines["ceiling"].values == [100, 9, 10, 9, 30, 9]
    assert lines["drain_1"].ratios == [0.5, 2.0, 1.0]
    assert lines["drain_2"].ratios == [2.0, 1.0, 1.2]
    assert cells(lines["drain_1"])[2:] == (
        "30 jobs/s", "20 to 50", "1.00 (0.50 to 2.00)", "≥ 1 times ceiling", "met"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ratio", "verdict"), [(1.0, "met"), (0.99, "missed")], ids=["reached", "not reached"]
)
def test_the_verdict_is_that_of_the_median(ratio: float, verdict: str) -> None:
    """What is to be reached is held against the median, not against the best round."""
    rounds = [{"drain_1": {"ceiling": 1.0, "drain_1": r}} for r in (0.1, ratio, 9.9)]
    assert cells(results(*rounds)["drain_1"])[-1] == verdict


@pytest.mark.parametrize(
    ("used_us", "second", "verdict"),
    [
        (80, 11_000.0, "missed"),
        (98, 11_000.0, "server full (98%)"),
        (98, 12_000.0, "met"),
    ],
    ids=["room", "full", "full and met"],
)
def test_a_second_worker_needs_room(used_us: float, second: float, verdict: str) -> None:
    """Where one worker keeps the server's core busy, no second one can be asked to be quicker."""
    first = {"ceiling": 1.0, "drain_1": 10_000.0, "drain_1_server_us": used_us}
    line = results({"drain_1": first, "drain_2": {"drain_2": second}})["drain_2"]
    assert cells(line)[-1] == verdict


@pytest.mark.parametrize(
    ("name", "most", "met"), [("valkey 9.1.0", "350", False), ("redis 7.0.15", "420", True)]
)
def test_the_bytes_of_a_job_are_judged_by_server(name: str, most: str, met: bool) -> None:
    """Rows cost more on Redis, so more is allowed there."""
    line = results({"bytes_per_job": {"bytes_per_job": 400.0}}, server=name)["bytes_per_job"]
    assert (line.target, line.met) == (f"≤ {most}", met)


def test_small_sizes_are_not_judged() -> None:
    """A short form shows no verdict, and neither does a ratio whose other side was not taken."""
    taken = {"drain_1": {"ceiling": 1.0, "drain_1": 9.0}, "hostage_ms": {"hostage_ms": 1.0}}
    assert {line.met for line in results(taken, quick=True).values()} == {None}
    assert results({"drain_2": {"drain_2": 9.0}})["drain_2"].met is None


def test_the_page_shows_the_figures_that_are_kept() -> None:
    """The tables of the page are those of the files beside it, and of a whole run."""
    assert fill_page(PAGE) == PAGE.read_text()
    kept = Results.load(PAGE.with_suffix(".json"))
    assert not kept.quick
    assert len(kept.rounds) >= 5
    assert {line.figure.key for line in kept.lines()} == set(KEYS)


def test_filling_a_page(tmp_path: Path) -> None:
    """What stands between the marks is replaced, and nothing else."""
    Results({**VALKEY, "cores": "2"}, {}, False, [{"pickup": {"pickup_p50_ms": 0.25}}]).save(
        tmp_path / "some.json"
    )
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- bench: some.json -->\nold\n<!-- /bench -->\nafter\n")
    call_command("bench", "--docs", str(page))
    before, *block, after = page.read_text().splitlines()
    assert (before, after) == ("before", "after")
    assert "old" not in block
    assert block[2] == "2026-01-31, 1 rounds. server valkey 9.1.0, cores 2."
    assert "| 0.25 ms |" in block[6]
