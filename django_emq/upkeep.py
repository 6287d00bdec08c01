"""The verbs of `emq_fsck` and `emq_doctor`: audit and mend the books, ask for rights.

One function for each script, as in `scripts`; no worker or producer calls one for a job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .connections import Client
from .keys import queue_keys
from .scripts import SCRIPTS

ROW = ("type", "state", "attempts", "bytes", "worker")
AUDIT_MAX = 200  # ids in one call: about a millisecond of the server's time


class Fault(NamedTuple):
    """What `audit` found wrong with one id, at one instant.

    :ivar kind: ``no-row``, ``no-set``, ``two-sets``, ``damaged``, ``token``, ``time``, ``state``.
    :ivar remedy: the set where the job belongs; ``drop`` for an id without a row; ``none`` when the
        key of that set holds something else.
    :ivar reason: what the morgue says, where the job goes there.
    :ivar sets: its score in each set that has it.
    :ivar row: type of the row's key, state, attempts, bytes of the payload, worker.
    """

    id: bytes
    kind: str
    remedy: str
    reason: str
    sets: dict[str, float]
    row: dict[str, str]


def audit(
    client: Client,
    queue: str,
    ids: Sequence[bytes],
    *,
    found_in: str = "",
    mend: bool = False,
    lease_ms: int = 15_000,
) -> list[Fault]:
    """Look at the books of up to 200 ids of a queue, and mend them where asked.

    :param found_in: the set where the ids were found; '' when their rows were.
    """
    if not ids:
        return []
    k = queue_keys(queue, client.prefix)
    keys = (k.pending, k.active, k.schedule, k.dead, k.done, k.wake, k.metrics, k.trail)
    args = (k.jobs, found_in, int(mend), lease_ms, client.trail_max, *ids)
    result: list[Fault] = client.run(SCRIPTS["audit"], keys, args, _faults)
    return result


def _faults(reply: list[Any]) -> list[Fault]:
    return [
        Fault(
            id=job_id,
            kind=kind.decode(),
            remedy=remedy.decode(),
            reason=reason.decode(),
            sets={
                name.decode(): float(score)
                for name, score in zip(sets[::2], sets[1::2], strict=True)
            },
            row=dict(zip(ROW, map(_text, row), strict=True)),
        )
        for job_id, kind, remedy, reason, sets, row in reply
    ]


def _text(value: bytes | int) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def mend(
    client: Client,
    key: Any,
    rule: str,
    what: object,
    value: object = "",
    *,
    row: Any = "",
    look: bool = False,
) -> bool:
    """Put right a key that is no set and no row; answers whether it was wrong.

    :param rule: ``type``, ``ttl``, ``orphan`` or ``field``, see `lua/mend.lua`.
    :param row: key of the row that an orphan would belong to.
    :param look: change nothing.
    """
    args = (int(not look), rule, what, value)
    return bool(client.run(SCRIPTS["mend"], (key, row or key), args, int))


def allowed(client: Client, commands: Sequence[Sequence[str]]) -> list[bool]:
    """Whether the user of this client may carry out each of the commands; none is carried out."""
    args = [part for words in commands for part in (len(words), *words)]
    result: list[bool] = client.run(SCRIPTS["rights"], (), args, lambda reply: [*map(bool, reply)])
    return result
