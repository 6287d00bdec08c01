"""The chaos command: a short run with a fixed seed, and a report that finds what is wrong."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from chaos.faults import FAULTS
from chaos.ledger import Ledger, append
from chaos.report import Report, Rest

from django_emq.keys import queue_keys
from tests.processes import Worker, manage, wait_until
from tests.test_demo import processes

SEED = 20260131


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A folder for temporary files, and a name by which the processes of a run are found."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    return {"EMQ_DB": str(tmp_path / "chaos.sqlite3"), "TMPDIR": str(temporary)}


@pytest.mark.timeout(300)
def test_nothing_is_lost_in_twenty_seconds_of_faults(env, tmp_path) -> None:
    """All figures are what they must be, each fault has happened, and nothing is left behind."""
    kept = tmp_path / "figures.json"
    run = manage(
        "chaos", "--seconds", "20", "--seed", str(SEED), "--json", str(kept), seconds=280, **env
    )

    assert run.returncode == 0, run.stdout + run.stderr
    figures = json.loads(kept.read_text())
    assert figures["ok"]
    assert figures["wrong"] == []
    assert set(figures["faults"]) == {fault.__name__ for fault in FAULTS}
    assert {"claimed", "completed", "failed", "died"} <= set(figures["trail"])
    last = run.stdout.splitlines()[-1]
    assert re.fullmatch(
        rf"chaos: [\d,]+ faults, [\d,]+ jobs admitted, 0 lost, 0 settled twice, 0 imbalances, "
        rf"seed {SEED}",
        last,
    )
    assert processes(env) == []
    assert list(Path(env["TMPDIR"]).iterdir()) == []


def test_control_c_ends_it(env) -> None:
    """Nothing is left behind, and the last line says so."""
    with Worker("--seconds", "600", "--seed", "1", command="chaos", **env) as chaos:
        wait_until(lambda: len(processes(env)) > 5, seconds=60, what="its workers")
        chaos.signal(signal.SIGINT)
        assert chaos.wait(60) == 130, chaos.output
        assert chaos.lines[-1] == "chaos: stopped; all that it started has ended\n"
    wait_until(lambda: processes(env) == [], what="the end of its processes")
    assert list(Path(env["TMPDIR"]).iterdir()) == []


# -- the report -------------------------------------------------------------------------------

EFFECTS = ["a 1", "b 1", "b 2", "c 1"]
TRAIL = ["claimed a 1", "completed a 1", "claimed b 1", "failed b 1", "claimed b 2"]
TRAIL += ["completed b 2", "claimed c 1", "buried c 1", "refused b 2"]


@pytest.fixture
def report(tmp_path: Path) -> Report:
    """A right one: `a` was completed, `b` failed once and is kept, `c` is in the morgue."""
    ledger = Ledger(tmp_path, queue_keys("chaos"))
    for path, lines in ((ledger.effects_path, EFFECTS), (ledger.trail_path, TRAIL)):
        for line in lines:
            append(path, line)
    return Report(
        seed=1,
        seconds=1,
        faults={"cut": 1},
        started=5,
        early=0,
        deserters=[],
        admitted={"a": None, "b": 42, "c": None},
        said={"enqueued": 3},
        ledger=ledger,
        rest=rest(),
        checks=1,
        unbalanced=[],
        memory_before=1000,
        memory_after=2000,
        keys_left=["sent", "{emq}"],
    )


def rest(*, reason: bytes = b"no use", result: bytes = b"42", waiting=(), **totals: int) -> Rest:
    """What is on the server at the end of it."""
    state = {name: {} for name in ("pending", "active", "schedule")} | {"pending": dict(waiting)}
    state |= {"done": {"b": 1.0}, "dead": {"c": 1.0}}
    state["rows"] = {"b": {b"result": result}, "c": {b"last_error": reason}}
    return Rest(state, {"enqueued": 3, "completed": 2, **totals})


def test_a_right_report(report) -> None:
    """Nothing to complain of."""
    assert report.wrong == []
    assert report.ok
    assert report.summary().startswith("chaos: 1 faults, 3 jobs admitted, 0 lost")
    assert report.as_dict()["figures"]["jobs admitted"] == "3"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("b 1", "run twice under one token: 1, must be 0. b"),
        ("claimed b 2", "claimed twice under one token: 1, must be 0. b"),
        ("completed b 2", "settled twice: 1, must be 0. b"),
        ("failed b 1", "settled twice: 1, must be 0. b"),
        ("completed c 2", "settled twice: 1, must be 0. c"),
        ("released b 1", "settled by an old token: 1, must be 0. b"),
        ("claimed a 2", "claimed after their end: 1, must be 0. a"),
    ],
)
def test_what_the_ledger_shows(report, line, words) -> None:
    """Each line that must not be there is found, with the job."""
    ledger = report.ledger
    append(ledger.trail_path if line.count(" ") == 2 else ledger.effects_path, line)
    assert words in report.wrong
    assert not report.ok


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"admitted": {"a": None, "d": None}}, "admitted jobs lost: 1, must be 0. d"),
        ({"admitted": {}}, "jobs admitted: 0, must be > 0."),
        ({"admitted": dict.fromkeys("abcd")}, "admitted, unknown to the server: 1, must be 0."),
        ({"rest": rest(reason=b"")}, "in the morgue without a reason: 1, must be 0. c"),
        ({"rest": rest(result=b"41")}, "kept results missing or wrong: 1, must be 0. b"),
        ({"rest": rest(enqueued=4)}, "jobs unaccounted for: 1, must be 0."),
        ({"rest": rest(waiting={"e": 0.0})}, "waiting at the end: 1, must be 0."),
        ({"unbalanced": ["x"]}, "times the books did not balance: 1, must be 0. x"),
        ({"deserters": ["log"]}, "processes that ended by themselves: 1, must be 0. log"),
        ({"keys_left": ["job"]}, "kinds of keys left behind: 1, must be 0. job"),
        ({"memory_after": 10_000_000}, "memory at the end, KB: 9,766, must be ≤ 257."),
    ],
)
def test_what_else_may_be_wrong(report, change, words) -> None:
    """Each figure that can be wrong is found, and said."""
    wrong = replace(report, **change)
    assert any(sentence.startswith(words) for sentence in wrong.wrong), wrong.wrong
    assert wrong.summary().startswith("chaos: WRONG: ")
