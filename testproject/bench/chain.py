"""The floor of the pick-up: a bare redis-py worker that waits for one job at a time.

    python -m bench.chain URL

It blocks on the wake list, claims one job by the yardstick's script, stamps the board, and deletes
the row. What its jobs wait for is what two processes, two round trips and this machine cost.
"""

from __future__ import annotations

import sys
import time
from time import monotonic

import redis

from .board import Board
from .ceiling import ACTIVE, CLAIM, COMPLETE, LEASE_MS, PENDING, ROWS

WAKE = "emq:{bench}:wake"
ENQUEUE = """
redis.call('HSET', ARGV[1] .. ARGV[2], 'state', 'pending', 'attempts', '0', 'payload', ARGV[3])
redis.call('ZADD', KEYS[1], 0, ARGV[2])
redis.call('LPUSH', KEYS[2], '1')
return 1
"""


def send(client: redis.Redis, board: Board, jobs: range, pause: float) -> None:
    """Enqueue single jobs, a pause before each, and stamp when each was sent."""
    enqueue = client.script_load(ENQUEUE)
    for job in jobs:
        time.sleep(pause)
        board.sent[job] = monotonic()
        client.evalsha(enqueue, 2, PENDING, WAKE, ROWS, f"JOB{job:022d}", job)


def work(client: redis.Redis, board: Board) -> None:
    """Take jobs until the last one of the board has run."""
    claim, complete = client.script_load(CLAIM), client.script_load(COMPLETE)
    while not board.runs[board.jobs - 1]:
        client.blpop([WAKE], 30)
        jobs = client.evalsha(claim, 2, PENDING, ACTIVE, ROWS, LEASE_MS, 1)
        if jobs:
            job_id, payload, token = jobs
            board.stamp(int(payload))
            client.evalsha(complete, 1, ACTIVE, ROWS, job_id, token)


if __name__ == "__main__":
    work(redis.Redis.from_url(sys.argv[1]), Board.of_this_worker())
