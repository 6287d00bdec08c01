"""How long a failed job waits before it runs again.

A policy is a callable ``policy(failures, error) -> seconds``. ``failures`` counts from 1: the
failure just seen is included. A project's own callable may also answer a ``timedelta``, or
``None`` for "do not retry".
"""

from __future__ import annotations

import inspect
import math
import pkgutil
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from .exceptions import InvalidOption
from .log import get_logger

logger = get_logger("backoff")

Policy = Callable[[int, BaseException | None], float | None]

MAX_DELAY = 10 * 365 * 86400  # seconds; more is a mistake in the unit, not a plan


def _is_delay(value: object) -> bool:
    # NaN fails both comparisons, and infinity the second.
    return (
        isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= MAX_DELAY
    )


def _require_delay(owner: str, name: str, value: object) -> None:
    if not _is_delay(value):
        raise InvalidOption(
            f"{owner}: {name} is {value!r}. Give a number of seconds from 0 to {MAX_DELAY}."
        )


@dataclass(frozen=True, slots=True)
class Fixed:
    """Wait the same number of ``seconds`` after each failure."""

    seconds: float

    def __post_init__(self) -> None:
        _require_delay("Fixed", "seconds", self.seconds)

    def __call__(self, failures: int, error: BaseException | None = None) -> float:
        return float(self.seconds)


@dataclass(frozen=True, slots=True)
class Linear:
    """Wait ``step`` seconds after the first failure, twice that after the second, up to ``cap``."""

    step: float
    cap: float

    def __post_init__(self) -> None:
        _require_delay("Linear", "step", self.step)
        _require_delay("Linear", "cap", self.cap)

    def __call__(self, failures: int, error: BaseException | None = None) -> float:
        return float(min(self.step * max(failures, 1), self.cap))


@dataclass(frozen=True, slots=True)
class Exponential:
    """Wait ``base`` seconds after the first failure and ``factor`` times longer after each next.

    Never longer than ``cap`` seconds. With ``jitter`` the answer is drawn evenly between 0 and
    that time ("full jitter"), so that jobs which failed together do not come back together.
    """

    base: float
    factor: float = 2
    cap: float = 3600
    jitter: bool = True

    def __post_init__(self) -> None:
        _require_delay("Exponential", "base", self.base)
        _require_delay("Exponential", "cap", self.cap)
        if 0 < self.base < 0.001:
            raise InvalidOption(
                f"Exponential: base is {self.base!r}. Give 0, or a number of seconds from 0.001 "
                "upwards: due times are kept in milliseconds."
            )
        number = isinstance(self.factor, (int, float)) and not isinstance(self.factor, bool)
        if not number or not 1 <= self.factor < math.inf:
            raise InvalidOption(
                f"Exponential: factor is {self.factor!r}. Give a number from 1 upwards; "
                "below 1 the waits would shrink."
            )

    def ceiling(self, failures: int) -> float:
        """Seconds before jitter: ``min(base * factor ** (failures - 1), cap)``."""
        if self.base == 0 or self.cap == 0:
            return 0.0
        steps = max(failures - 1, 0)
        # The power may be beyond any float (5.0 ** 1000 is), its logarithm never is. So the cap is
        # applied to the logarithm, and only a power that stays below cap / base is computed.
        if steps * math.log(self.factor) >= math.log(self.cap) - math.log(self.base):
            return float(self.cap)
        return float(min(self.base * self.factor**steps, self.cap))

    def __call__(self, failures: int, error: BaseException | None = None) -> float:
        ceiling = self.ceiling(failures)
        return random.uniform(0, ceiling) if self.jitter else ceiling


DEFAULT = Exponential(base=5, factor=3, cap=3600)


@dataclass(frozen=True, slots=True)
class Custom:
    """A project's own callable, with its answer brought to seconds.

    A callable that raises, or that answers something else than a number of seconds, a
    ``timedelta`` or ``None``, must not cost the job its next try: the error is logged and the
    default policy answers instead.
    """

    function: Callable[[int, BaseException | None], float | timedelta | None]

    def __call__(self, failures: int, error: BaseException | None = None) -> float | None:
        try:
            answer = self.function(failures, error)
        except Exception:
            logger.exception("Backoff %s raised; the default policy is used.", _name(self.function))
            return DEFAULT(failures, error)
        if answer is None:
            return None
        seconds = answer.total_seconds() if isinstance(answer, timedelta) else answer
        if not _is_delay(seconds):
            logger.error(
                "Backoff %s answered %r; the default policy is used. "
                "Answer seconds from 0 to %d, a timedelta, or None for no retry.",
                _name(self.function),
                answer,
                MAX_DELAY,
            )
            return DEFAULT(failures, error)
        return float(seconds)


def resolve(value: Any) -> Policy:
    """Turn what a setting or a task says into a policy.

    ``None`` is the default policy; a number (seconds) or a ``timedelta`` a fixed wait; a string
    the dotted path of a callable; a policy of this module stays itself; any other callable takes
    ``(failures, error)``. Raises InvalidOption with a sentence that names the value.
    """
    if value is None:
        return DEFAULT
    if isinstance(value, (Fixed, Linear, Exponential, Custom)):
        return value
    if isinstance(value, timedelta):
        return Fixed(value.total_seconds())
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return Fixed(value)
    if isinstance(value, str):
        return _own(_load(value), value)
    return _own(value, _name(value))


def _load(path: str) -> Any:
    try:
        return pkgutil.resolve_name(path)
    except Exception as error:  # the module is not ours and may raise anything
        raise InvalidOption(
            f"Backoff {path!r} cannot be imported: {error}. "
            "Give the dotted path of a callable, for instance 'shop.retries.backoff'."
        ) from error


def _own(function: Any, name: str) -> Policy:
    """Wrap a callable; refuse what would fail at the first failure of a job."""
    if isinstance(function, (Fixed, Linear, Exponential, Custom)):
        return function
    if inspect.isclass(function):
        raise InvalidOption(f"Backoff {name} is a class. Give an instance or a function.")
    if not callable(function):
        raise InvalidOption(
            f"Backoff {name} is no policy. Give a number of seconds, a timedelta, a policy of "
            "django_emq.backoff, a callable, or the dotted path of one."
        )
    if inspect.iscoroutinefunction(function):
        raise InvalidOption(f"Backoff {name} is an async function. Give a plain one.")
    try:
        inspect.signature(function).bind(1, None)
    except TypeError as error:
        raise InvalidOption(
            f"Backoff {name} cannot be called with (failures, error): {error}. "
            "Give it these two arguments."
        ) from error
    except ValueError:
        pass  # written in C and without a signature: the call itself will tell
    return Custom(function)


def _name(value: object) -> str:
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    return f"{module}.{name}" if module and name else repr(value)
