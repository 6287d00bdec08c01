"""The long pass of the model, and the defects that it must catch. Fills in docs/proof.md.

`make proof` runs it. It takes a quarter of an hour, so the suite does not.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version

import pytest
from hypothesis.errors import HypothesisException

from django_emq import scripts
from tests.model.defects import DEFECTS, Defect, plant
from tests.model.machine import Machine
from tests.model.run import SEED, walk
from tests.processes import ROOT

PAGE = ROOT / "docs" / "proof.md"
EXAMPLES, STEPS = 2000, 50
# A short pass leaves most verbs out that cannot meet the broken one. These and their like stay:
# enqueue, claim, complete, reap, and time.
RARE = (
    "enqueue_tied",
    "enqueue_unique",
    "overtake",
    "retry",
    "snooze",
    "release",
    "bury",
    "discard",
    "extend",
    "progress",
    "log",
    "promote",
    "onward",
    "trim",
    "reprocess",
    "requeue",
    "cancel",
    "remove",
    "drain",
    "obliterate",
    "update",
    "wait",
    "pause",
    "limit",
    "ask",
    "repeat_register",
    "repeat_cancel",
    "repeat_advance",
    "repeat_due",
    "tick",
)
# What else has to happen before a defect of a script can show.
FRIENDS = {
    "complete": {"log"},
    "claim": {"release", "pause", "limit"},
    "enqueue_unique": {"release", "snooze"},
    "promote": {"snooze"},
    "reprocess": {"bury"},
    "resume": {"pause"},
    "trim": {"bury"},
    "unregister": {"ask"},
}
SHORT, SEEDS = {"examples": 200, "steps": 40}, 4

Caught = dict[Defect, bool]


@pytest.fixture(scope="module")
def caught() -> Iterator[Caught]:
    """Which defects were caught; the table is written once all have been tried."""
    caught: Caught = {}
    yield caught
    if len(caught) == len(DEFECTS):
        fill("mutations", table(caught))


@pytest.mark.timeout(7200)
def test_the_long_pass(server) -> None:
    """All verbs in any order: the server and the model never differ."""
    Machine.answers.clear()
    started = time.monotonic()
    walk(examples=EXAMPLES, steps=STEPS, seed=SEED)
    seconds = time.monotonic() - started
    info = server.client().info("server")
    name = info.get("server_name", "redis")
    facts = (
        f"{datetime.now(UTC):%Y-%m-%d}: {EXAMPLES:,} examples of {STEPS} steps, seed {SEED}, "
        f"{seconds:,.0f} seconds, no difference found. {name} {info[f'{name}_version']}, "
        f"hypothesis {version('hypothesis')}."
    )
    rows = ["| Verb | Accepted | Refused |", "|---|---:|---:|"]
    for verb in sorted({verb for verb, _ in Machine.answers}):
        yes, no = (Machine.answers[verb, accepted] for accepted in (True, False))
        rows.append(f"| `{verb}` | {yes:,} | {no:,} |")
    fill("model", facts + "\n\n" + "\n".join(rows))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda d: f"{d.script}: {d.what}")
def test_a_defect_is_caught(
    defect: Defect, caught: Caught, redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the defect in the script, a short pass of the model fails, with one of a few seeds."""
    monkeypatch.setitem(scripts.SCRIPTS, defect.script, plant(defect))
    redis.script_flush()
    caught[defect] = False
    with pytest.raises((AssertionError, HypothesisException)):
        walk_on(defect)
    caught[defect] = True


def walk_on(defect: Defect) -> None:
    """A few short passes, with the verbs that matter to a script."""
    wanted = {defect.script, *FRIENDS.get(defect.script, ()), *defect.friends}
    for seed in range(SEED, SEED + SEEDS):
        walk(**SHORT, seed=seed, explain=False, without=[r for r in RARE if r not in wanted])


def table(caught: Caught) -> str:
    """One line a script, and the total."""
    rows = ["| Script | Planted | Caught |", "|---|---|---:|"]
    for script in sorted({defect.script for defect in caught}):
        own = [defect for defect in caught if defect.script == script]
        words = "; ".join(d.what if caught[d] else f"**missed: {d.what}**" for d in own)
        rows.append(f"| `{script}` | {words} | {sum(caught[d] for d in own)} of {len(own)} |")
    rows.append(f"| all | | {sum(caught.values())} of {len(caught)} |")
    return "\n".join(rows)


def fill(name: str, text: str) -> None:
    """Write into the block of this name of the page."""
    block = re.compile(rf"(<!-- proof: {name} -->\n).*?(<!-- /proof -->)", re.DOTALL)
    page, count = block.subn(lambda match: f"{match[1]}\n{text}\n\n{match[2]}", PAGE.read_text())
    assert count == 1, f"{PAGE} has no block {name!r}"
    PAGE.write_text(page)
