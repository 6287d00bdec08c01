"""One pass of the state machine, from a seed."""

from __future__ import annotations

import os
from collections.abc import Iterable

from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import seed as seeded
from hypothesis.stateful import run_state_machine_as_test

from tests.model.machine import Machine

# The same examples each time, so that a run that fails can be had again.
SEED = int(os.environ.get("MODEL_SEED", "20260131"))


def walk(
    *, examples: int, steps: int, seed: int, explain: bool = True, without: Iterable[str] = ()
) -> None:
    """Drive the machine; raises what it found, with the shortest way to it if `explain`.

    :param without: rules that are left out: what is no function any more is no rule.
    """
    machine = seeded(seed)(type("Machine", (Machine,), dict.fromkeys(without)))
    phases = [Phase.generate, *([Phase.shrink] if explain else [])]
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        phases=phases,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.normal if explain else Verbosity.quiet,
    )
    try:
        run_state_machine_as_test(machine, settings=chosen)
    except BaseException as error:
        error.add_note(f"MODEL_SEED={seed}, {examples} examples of {steps} steps")
        raise
