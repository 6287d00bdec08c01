"""Job ids: ``JOB`` and 22 base-62 digits of a UUIDv7, 25 bytes.

A UUIDv7 begins with 48 bits of milliseconds and goes on with a counter and random bits, so
ids grow strictly within a process and are unique between processes without a node number.
The alphabet is in ASCII order and the width is fixed: byte order is mint order, which is why
`pending` needs no second index.
"""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from uuid import UUID

import uuid_utils

KIND = "JOB"
ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
PATTERN = re.compile(KIND + r"[0-9A-Za-z]{22}\Z")

_PAIRS = [a + b for a in ALPHABET for b in ALPHABET]
_DIGIT = {digit: value for value, digit in enumerate(ALPHABET)}
_LOW = (1 << 64) - 1

# A forked child has its parent's random state: without this, two children could mint one id.
os.register_at_fork(after_in_child=uuid_utils.reseed_rng)


def _digits(number: int) -> str:
    """Eleven base-62 digits of a number below 2**64."""
    number, a = divmod(number, 3844)
    number, b = divmod(number, 3844)
    number, c = divmod(number, 3844)
    number, d = divmod(number, 3844)
    first, e = divmod(number, 3844)
    return ALPHABET[first] + _PAIRS[e] + _PAIRS[d] + _PAIRS[c] + _PAIRS[b] + _PAIRS[a]


def mint() -> str:
    """A new job id, greater than every id minted before in this process."""
    number = uuid_utils.uuid7().int
    return KIND + _digits(number >> 64) + _digits(number & _LOW)


def is_job_id(text: str) -> bool:
    """Whether the text has the form of a job id."""
    return bool(PATTERN.match(text))


def minted_at(job_id: str) -> datetime:
    """When the id was minted, by the clock of the process that enqueued the job."""
    return datetime.fromtimestamp((_number(job_id[3:14]) >> 16) / 1000, UTC)


def uuid_of(job_id: str) -> UUID:
    """The UUIDv7 in the id: in the order of the ids, whatever collation a database has."""
    return UUID(int=_number(job_id[3:14]) << 64 | _number(job_id[14:]))


def _number(digits: str) -> int:
    number = 0
    for digit in digits:
        number = number * 62 + _DIGIT[digit]
    return number
