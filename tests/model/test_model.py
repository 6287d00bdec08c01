"""The short pass of the model, which every run of the suite does. The long one: `make proof`."""

from __future__ import annotations

import pytest

from django_emq import scripts
from tests.model.defects import DEFECTS, Defect, NoPlace, plant
from tests.model.run import SEED, walk


@pytest.mark.timeout(300)
def test_the_queue_does_what_the_model_says() -> None:
    """Any order of all verbs, by fresh and stale holders, while time passes."""
    walk(examples=45, steps=40, seed=SEED)


def test_each_defect_still_finds_its_place() -> None:
    """A defect that no longer fits its script would prove nothing."""
    planted = [plant(defect) for defect in DEFECTS]
    assert len({script.sha for script in planted}) == len(DEFECTS)
    assert {script.sha for script in planted}.isdisjoint(s.sha for s in scripts.SCRIPTS.values())


@pytest.mark.parametrize("old", ["no such text", "redis.call"])
def test_a_defect_without_its_place_is_told(old: str) -> None:
    """Neither nowhere nor in several places."""
    with pytest.raises(NoPlace, match=rf"'{old}' is \d+ times in bury.lua, not once"):
        plant(Defect("nothing", "bury", ((old, ""),)))
