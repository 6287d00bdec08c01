"""The time of a test: stored times move back, and schedules tick, as its clock is advanced."""

from __future__ import annotations

from datetime import datetime

from .. import inspector, scripts
from ..admission import introduce, verb_of
from ..conf import settings
from ..connections import Client
from ..exceptions import InvalidOption
from ..keys import queue_keys
from ..repeats import FIELDS, Tick
from ..schedules import Placed, declared, placed
from ..ticker import PRODUCER, job_of, now_ms

TICKS_MAX = 1000  # of one advance

# Times that the queue has stored, moved back: a script only compares them with the clock.
_ADVANCE = """
for number, set in ipairs(KEYS) do
  local entries = redis.call('ZRANGE', set, 0, -1, 'WITHSCORES')
  for i = 1, #entries, 2 do
    if number < #KEYS then  -- the scores of the last one, pending, are no times
      redis.call('ZADD', set, string.format('%.0f', entries[i + 1] - ARGV[1]), entries[i])
    end
    for _, field in ipairs({'unique_since', 'due', 'expires_at'}) do
      local at = redis.call('HGET', ARGV[2] .. entries[i], field)
      if at then
        redis.call('HSET', ARGV[2] .. entries[i], field, string.format('%.0f', at - ARGV[1]))
      end
    end
  end
end
"""


def pass_time(client: Client, ms: int) -> None:
    """Let time pass for the jobs of all queues: leases end, times come, jobs expire."""
    conf = settings()
    for name in inspector.queues(client):
        keys = queue_keys(name, conf.prefix)
        sets = (keys.active, keys.schedule, keys.dead, keys.done, keys.pending)
        client.raw.eval(_ADVANCE, len(sets), *sets, ms, keys.jobs)
        for key in client.raw.scan_iter(match=f"{keys.uniques}*", count=1000):
            if (left := client.raw.pttl(key)) > 0:
                client.raw.pexpire(key, max(left - ms, 0))
        scripts.reap(client, name, max_stalls=conf.queue(name).max_stalls)


class Clock:
    """The time that it is for the schedules of one test.

    :ivar now: in ms since 1970; None until the first schedule was started.
    """

    def __init__(self) -> None:
        self.now: int | None = None
        self._next: dict[str, tuple[int, Placed]] = {}

    def start(self, client: Client, names: tuple[str, ...], at: datetime | None) -> None:
        """Enter schedules of the code, all where no name is given; nothing is fired."""
        known = declared()
        for name in names:
            if name not in known:
                said = ", ".join(known) or "none"
                raise InvalidOption(f"The code has no schedule {name!r}. There are: {said}.")
        if at is not None:
            if at.utcoffset() is None:
                raise InvalidOption(f"at is {at!r}. Use an aware datetime.")
            self.now = int(at.timestamp() * 1000)
        elif self.now is None:
            self.now = now_ms(client)
        for name in names or tuple(known):
            one = placed(name, known[name], settings())
            entry = one.entry(self.now)
            introduce(client, [one.queue])
            scripts.declare(client, one.queue, "code", [entry])
            self._next[name] = (int(entry.next_ms), one)

    def advance(self, client: Client, ms: int) -> None:
        """Enqueue a job for each time that comes meanwhile, in their order."""
        if self.now is None:
            return
        self.now += ms
        for _ in range(TICKS_MAX):
            due = [(planned, name) for name, (planned, _) in self._next.items()]
            planned, name = min(due, default=(self.now + 1, ""))
            if planned > self.now:
                return
            self._tick(client, name, planned)
        raise AssertionError(
            f"{TICKS_MAX} times of schedules in one advance: start fewer, or advance by less."
        )

    def _tick(self, client: Client, name: str, planned: int) -> None:
        _, one = self._next[name]
        record = {field: str(one.record.get(field, "")) for field in FIELDS}
        job = job_of(one.queue, name, record, planned)
        # Between two times, for the server: its own clock stands still.
        tick = Tick(name, None, 0, planned, record["rule"])
        admit = verb_of([job])
        admit(client, one.queue, [job], request=job.id, producer=PRODUCER, tick=tick)
        following = one.rule.after(planned)
        scripts.repeat_advance(client, one.queue, name, following)
        self._next[name] = (following, one)
