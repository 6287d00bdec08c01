"""Backoff: how long a failed job waits."""

from __future__ import annotations

import math
from datetime import timedelta
from time import monotonic
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_emq.backoff import (
    DEFAULT,
    MAX_DELAY,
    Custom,
    Exponential,
    Fixed,
    Linear,
    resolve,
)
from django_emq.exceptions import InvalidOption, OutcomeUnknown
from django_emq.log import PAUSE_MAX, Outage, get_logger


def twice_the_failures(failures: int, error: BaseException | None) -> float:
    return failures * 2.0


def needs_a_third(failures: int, error: BaseException | None, third: int) -> float:
    return 1.0


async def asynchronous(failures: int, error: BaseException | None) -> float:
    return 1.0


steady = Linear(step=10, cap=60)


class OwnPolicy:
    def __call__(self, failures: int, error: BaseException | None) -> timedelta:
        return timedelta(minutes=failures)


# -- the policies --------------------------------------------------------------------------------


def test_fixed_waits_the_same_each_time() -> None:
    """The number of failures changes nothing."""
    assert [Fixed(7)(n) for n in (1, 2, 1000)] == [7, 7, 7]


def test_linear_grows_by_its_step_up_to_the_cap() -> None:
    """Failures count from 1: the first wait is one step."""
    assert [Linear(step=10, cap=35)(n) for n in (1, 2, 3, 4, 5)] == [10, 20, 30, 35, 35]


def test_exponential_without_jitter_is_its_ceiling() -> None:
    """Failures count from 1: the first wait is the base."""
    policy = Exponential(base=5, factor=3, cap=100, jitter=False)
    assert [policy(n) for n in (1, 2, 3, 4, 5)] == [5, 15, 45, 100, 100]


def test_the_default_of_exponential_is_doubling_up_to_an_hour() -> None:
    """What a user who writes Exponential(60) gets."""
    assert Exponential(60) == Exponential(base=60, factor=2, cap=3600, jitter=True)


def test_full_jitter_fills_the_whole_range() -> None:
    """Draws lie between 0 and the ceiling, and reach both ends of it."""
    policy = Exponential(base=10, factor=2, cap=3600)
    draws = [policy(3) for _ in range(2000)]
    assert 0 <= min(draws) < 2
    assert 38 < max(draws) <= 40


def test_a_factor_of_one_never_grows() -> None:
    """No special case is needed for a constant wait."""
    assert {Exponential(base=8, factor=1).ceiling(n) for n in (1, 2, 10_000)} == {8}


@given(
    base=st.one_of(st.just(0), st.floats(0.001, MAX_DELAY)),
    factor=st.floats(1, 1e300),
    cap=st.floats(0, MAX_DELAY),
    failures=st.integers(-3, 10**12),
)
def test_a_ceiling_is_finite_monotone_and_below_the_cap(
    base: float, factor: float, cap: float, failures: int
) -> None:
    """Whatever the policy and the number of failures."""
    policy = Exponential(base, factor, cap)
    now, later = policy.ceiling(failures), policy.ceiling(failures + 1)
    assert 0 <= now <= later <= cap


@pytest.mark.parametrize(
    "policy",
    [
        Exponential(base=1, factor=5, cap=3600),
        Exponential(base=1, factor=1e9, cap=3600),
        Exponential(base=0, factor=5, cap=3600),
        Exponential(base=0, factor=1e9, cap=3600),
    ],
)
def test_B45_backoff_does_not_overflow(policy: Exponential) -> None:
    """2,000 tries: never an error, never negative, exact, monotone up to the cap."""
    ceilings = [policy.ceiling(n) for n in range(1, 2001)]
    exact = [min(int(policy.base) * int(policy.factor) ** (n - 1), 3600) for n in range(1, 2001)]
    assert ceilings == exact
    assert ceilings == sorted(ceilings)
    for n, ceiling in enumerate(ceilings, 1):
        drawn = policy(n)
        assert math.isfinite(drawn)
        assert 0 <= drawn <= ceiling


def test_the_pauses_of_a_long_outage_do_not_overflow() -> None:
    """An hour of tries: none raises, and no pause is longer than the longest."""
    outage = Outage(get_logger("test"), "test")
    for _ in range(2000):
        outage.failed(OutcomeUnknown("no answer"))
        assert 0 < outage.retry_at - monotonic() <= PAUSE_MAX
    outage.over()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Fixed(-1), "seconds is -1"),
        (lambda: Fixed(True), "seconds is True"),
        (lambda: Fixed(math.nan), "seconds is nan"),
        (lambda: Fixed(math.inf), "seconds is inf"),
        (lambda: Fixed(MAX_DELAY + 1), f"from 0 to {MAX_DELAY}"),
        (lambda: Linear(step=-1, cap=5), "step is -1"),
        (lambda: Linear(step=1, cap=-5), "cap is -5"),
        (lambda: Exponential(base=-1), "base is -1"),
        (lambda: Exponential(base=0.0001), "base is 0.0001"),
        (lambda: Exponential(base=1, cap=math.inf), "cap is inf"),
        (lambda: Exponential(base=1, factor=0.5), "factor is 0.5"),
        (lambda: Exponential(base=1, factor=True), "factor is True"),
        (lambda: Exponential(base=1, factor=math.inf), "factor is inf"),
    ],
)
def test_a_policy_refuses_a_bad_number(make: Any, words: str) -> None:
    """At the definition, not at the first failure of a job; the sentence shows the value."""
    with pytest.raises(InvalidOption, match=words):
        make()


# -- a project's own callable --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [(3, 3.0), (0, 0.0), (0.5, 0.5), (timedelta(minutes=2), 120.0), (None, None)],
)
def test_an_own_callable_answers_seconds_a_timedelta_or_none(
    answer: Any, seconds: float | None
) -> None:
    """A timedelta becomes seconds; None stays None: no further try."""
    seen = []

    def own(failures: int, error: BaseException | None) -> Any:
        seen.append((failures, error))
        return answer

    boom = ValueError("boom")
    assert resolve(own)(4, boom) == seconds
    assert seen == [(4, boom)]


@pytest.mark.parametrize("answer", [-1, math.nan, math.inf, True, "5", MAX_DELAY + 1])
def test_a_senseless_answer_does_not_cost_the_job_its_next_try(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The default policy answers instead, and the log names the callable and its answer."""
    drawn = resolve(lambda failures, error: answer)(2, None)
    assert drawn is not None
    assert 0 <= drawn <= DEFAULT.ceiling(2)
    assert f"answered {answer!r}" in caplog.text
    assert "<lambda>" in caplog.text


def test_an_error_in_the_callable_does_not_cost_the_job_its_next_try(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The default policy answers instead, and the traceback is in the log."""

    def broken(failures: int, error: BaseException | None) -> float:
        return 1 / 0

    drawn = resolve(broken)(2, None)
    assert drawn is not None
    assert 0 <= drawn <= DEFAULT.ceiling(2)
    assert "broken raised" in caplog.text
    assert "ZeroDivisionError" in caplog.text


# -- resolve -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "policy"),
    [
        (None, Exponential(base=5, factor=3, cap=3600)),
        (30, Fixed(30)),
        (0, Fixed(0)),
        (0.25, Fixed(0.25)),
        (timedelta(minutes=1), Fixed(60)),
        (Fixed(1), Fixed(1)),
        (Exponential(1), Exponential(1)),
        (twice_the_failures, Custom(twice_the_failures)),
        ("tests.test_backoff.twice_the_failures", Custom(twice_the_failures)),
        ("tests.test_backoff.steady", steady),
        (Custom(twice_the_failures), Custom(twice_the_failures)),
    ],
)
def test_resolve(value: Any, policy: Any) -> None:
    """Each form that a setting or a task may use."""
    assert resolve(value) == policy


def test_an_object_with_a_call_method_is_a_policy() -> None:
    """State of one's own needs no function."""
    assert resolve(OwnPolicy())(3, None) == 180


def test_a_callable_without_a_signature_is_taken() -> None:
    """Some callables written in C have none; their call will tell."""
    assert resolve(dict.fromkeys) == Custom(dict.fromkeys)
    assert resolve(max)(3, None) is not None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (-5, "seconds is -5"),
        (True, "Backoff True is no policy"),
        (timedelta(seconds=-1), "seconds is -1"),
        ([1, 2], r"Backoff \[1, 2\] is no policy"),
        ("no.such.module", "Backoff 'no.such.module' cannot be imported"),
        ("tests.test_backoff.nothing", "Backoff 'tests.test_backoff.nothing' cannot be imported"),
        ("", "Backoff '' cannot be imported"),
        ("tests.test_backoff", "Backoff tests.test_backoff is no policy"),
        (Exponential, "Exponential is a class. Give an instance"),
        ("tests.test_backoff.OwnPolicy", "OwnPolicy is a class"),
        (lambda: 1, "cannot be called with"),
        (needs_a_third, "needs_a_third cannot be called with .failures, error.: missing a"),
        (asynchronous, "asynchronous is an async function"),
    ],
)
def test_resolve_refuses(value: Any, words: str) -> None:
    """What would fail at the first failure of a job fails here, with the way out."""
    with pytest.raises(InvalidOption, match=words) as caught:
        resolve(value)
    assert "Give" in str(caught.value)


def test_a_module_that_breaks_at_import_is_named(tmp_path: Any, monkeypatch: Any) -> None:
    """Whatever it raises, the sentence says which path could not be used."""
    (tmp_path / "broken_backoff_module.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidOption, match="'broken_backoff_module.f' cannot be imported: divis"):
        resolve("broken_backoff_module.f")
