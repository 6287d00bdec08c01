"""Memory that a child shares with its supervisor: what the child holds, and what it is told.

The child writes, at memory speed and without a system call, which jobs it has claimed and
which of them have started. When it is killed, the supervisor still knows. Two buffers take
turns: the one that `generation` points to is whole, whenever the writer may die.
"""

from __future__ import annotations

import mmap
import struct

RUN, STOP, STOP_NOW, QUIET = 0, 1, 2, 3

ID_SIZE = 32
_put_id = struct.Struct(f"{ID_SIZE}s").pack_into  # fills up with zeros
LOST_SIZE = 16 * 1024
CANCELLED = b"!"  # behind a lost job that was cancelled
HELD_AHEAD = 4000  # jobs that a child may hold beside those that run

# Numbers in front of the page: eight bytes each. _HELD is followed by the other buffer's size.
_GENERATION, _COMMAND, _LOST_COUNT, _LOST_BYTES, _READY, _JOBS, _HELD = range(7)
_INTS = 8 * 8
_FLOATS = 8  # bytes each. One: when the leases were last extended; then one for each slot


class Page:
    """The shared page of one child.

    :param slots: how many jobs the child can run at once.
    """

    def __init__(self, slots: int) -> None:
        ids = slots * ID_SIZE
        floats = _FLOATS * (1 + slots)
        self.slots = slots
        #: Bytes that fit a buffer: for each job its id, its token and a line of its own.
        self.held_max = (slots + HELD_AHEAD) * 2 * ID_SIZE
        self._map = mmap.mmap(-1, _INTS + floats + ids + LOST_SIZE + 2 * self.held_max)
        view = memoryview(self._map)
        self._ints = view[:_INTS].cast("q")
        start = _INTS
        self._floats = view[start : start + floats].cast("d")
        start += floats
        self._ids = view[start : start + ids]
        start += ids
        self._lost = view[start : start + LOST_SIZE]
        start += LOST_SIZE
        self._held = (view[start : start + self.held_max], view[start + self.held_max :])
        self._lost_seen = 0
        self._jobs_seen = 0

    # -- written by the child -----------------------------------------------------------------

    def publish(self, held: bytes) -> None:
        """Say what is held: lines of ``<queue number> <request> <id>:<token> …``."""
        generation = self._ints[_GENERATION] + 1
        which = generation & 1
        self._held[which][: len(held)] = held
        self._ints[_HELD + which] = len(held)
        self._ints[_GENERATION] = generation

    def start(self, slot: int, job_id: bytes) -> None:
        """Say that a job has started in one of the child's slots."""
        _put_id(self._ids, slot * ID_SIZE, job_id)

    def limit(self, slot: int, at: float) -> None:
        """Say when the job of a slot is to be killed, on the monotonic clock; 0.0 for never.

        After `start`, and taken back when the job has ended, before another one starts.
        """
        self._floats[1 + slot] = at

    def lost(self) -> list[tuple[bytes, int, bool]]:
        """Ids and tokens whose lease the supervisor found lost since the last call.

        And whether the job was cancelled.
        """
        count = self._ints[_LOST_COUNT]
        if count == self._lost_seen:
            return []
        self._lost_seen = count
        words = bytes(self._lost[: self._ints[_LOST_BYTES]]).split()
        return [
            (job_id, token, word.endswith(CANCELLED))
            for word in words
            for job_id, token in _pairs([word.removesuffix(CANCELLED)])
        ]

    @property
    def command(self) -> int:
        """RUN, QUIET, STOP or STOP_NOW."""
        return self._ints[_COMMAND]

    @property
    def extended_at(self) -> float:
        """When the leases were last extended, on the monotonic clock; 0.0 for never."""
        return self._floats[0]

    def ready(self) -> None:
        """Say that the child takes jobs."""
        self._ints[_READY] = 1

    def count(self, jobs: int) -> None:
        """Say how many jobs the child has run."""
        self._ints[_JOBS] = jobs

    # -- written by the supervisor ------------------------------------------------------------

    def held(self) -> list[tuple[int, bytes, int]]:
        """What the child holds: number of the queue, id, token. May name settled jobs too."""
        while True:
            generation = self._ints[_GENERATION]
            which = generation & 1
            held = bytes(self._held[which][: self._ints[_HELD + which]])
            if self._ints[_GENERATION] == generation:
                break
        found = []
        for line in held.splitlines():
            queue, _, *jobs = line.split(b" ")
            found += [(int(queue), job_id, token) for job_id, token in _pairs(jobs)]
        return found

    def started(self) -> set[bytes]:
        """Ids of the jobs that last started in each slot; some have ended since."""
        return {self._id(slot) for slot in range(self.slots)}

    def limits(self) -> list[float]:
        """When the running jobs are to be killed, those that have such a limit."""
        return [at for at in self._floats[1:] if at]

    def overdue(self, now: float) -> set[bytes]:
        """Ids of the jobs that should have been killed by now."""
        late = [slot for slot, at in enumerate(self._floats[1:]) if 0.0 < at <= now]
        return {self._id(slot) for slot in late}

    def _id(self, slot: int) -> bytes:
        return bytes(self._ids[slot * ID_SIZE : (slot + 1) * ID_SIZE]).rstrip(b"\0")

    def tell(self, command: int) -> None:
        """Tell the child to RUN, to be QUIET, to STOP or to STOP_NOW."""
        self._ints[_COMMAND] = command

    def tell_lost(self, jobs: list[tuple[bytes, int, bool]]) -> None:
        """Tell the child which leases were lost, and whether the job of each was cancelled.

        What does not fit is told the next time.
        """
        text = b" ".join(
            b"%b:%d%b" % (job_id, token, CANCELLED if cancelled else b"")
            for job_id, token, cancelled in jobs[: LOST_SIZE // (2 * ID_SIZE)]
        )
        self._lost[: len(text)] = text
        self._ints[_LOST_BYTES] = len(text)
        self._ints[_LOST_COUNT] += 1

    def extended(self, at: float) -> None:
        """Note when the leases were extended, on the monotonic clock."""
        self._floats[0] = at

    @property
    def is_ready(self) -> bool:
        """Whether the child takes jobs."""
        return self._ints[_READY] == 1

    def new_jobs(self) -> int:
        """How many jobs the child has run since the last call."""
        jobs, self._jobs_seen = self._ints[_JOBS] - self._jobs_seen, self._ints[_JOBS]
        return jobs


def _pairs(jobs: list[bytes]) -> list[tuple[bytes, int]]:
    """Ids and tokens; what is not ``<id>:<token>`` comes from a stranger's id and is left out."""
    pairs = (job.rpartition(b":") for job in jobs)
    return [(job_id, int(token)) for job_id, _, token in pairs if token.isdigit()]
