"""The faults: each a small function that does harm, and says how it is undone and when."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fault_proxy import Act
from library.crew import Member
from private_server import Server

from django_emq.jobs import decode
from django_emq.keys import queue_keys

from .crew import LEASE, Lane, Staff, children, kill
from .producers import LONG
from .tasks import QUEUE

Undo = Callable[[], object]
Harm = tuple[float, Undo] | None  # seconds after which it is undone, and how


@dataclass
class Scene:
    """Where faults happen."""

    dice: random.Random
    server: Server
    redis: Any  # a client that no proxy is in front of
    staff: Staff
    lanes: dict[str, Lane]

    def lane(self) -> Lane:
        """The way of some process to the server, the producers' included."""
        return self.dice.choice(list(self.lanes.values()))


def kill_child(scene: Scene) -> Harm:
    """SIGKILL to a process that runs jobs."""
    pids = children(scene.staff.pick(scene.dice, "worker").pid)
    if pids:
        kill(scene.dice.choice(pids))
    return None


def kill_worker(scene: Scene) -> Harm:
    """SIGKILL to a worker and all its children, as when a machine dies."""
    scene.staff.pick(scene.dice, "worker").signal_all(signal.SIGKILL)
    return None


def kill_supervisor(scene: Scene) -> Harm:
    """SIGKILL to a worker, but not to its children."""
    kill(scene.staff.pick(scene.dice, "worker").pid)
    return None


def kill_reaper(scene: Scene) -> Harm:
    """SIGKILL to a reaper."""
    scene.staff.pick(scene.dice, "reaper").signal_all(signal.SIGKILL)
    return None


def stop_worker(scene: Scene) -> Harm:
    """SIGSTOP to a worker and its children, for longer than a lease."""
    return _stop(scene, "worker")


def stop_holder(scene: Scene) -> Harm:
    """The same to one that is in the middle of a long job which will not simply be done.

    When it goes on, it ends that job at once, and most likely while another has it: only then does
    a verb show what it does with a token that is not the newest.
    """
    keys = queue_keys(QUEUE)
    holders = set()
    for job_id in scene.redis.zrange(keys.active, 0, -1):
        worker, payload = scene.redis.hmget(keys.job(job_id.decode()), "worker", "payload")
        call = decode(payload) if payload else None
        if worker and call and call.args[0] >= LONG:
            holders.add("-".join(worker.decode().split("-")[:2]))  # of its name, the post
    posts = sorted(holders & scene.staff.on.keys())
    return _stop(scene, "worker", scene.staff.on[scene.dice.choice(posts)] if posts else None)


def stop_reaper(scene: Scene) -> Harm:
    """SIGSTOP to a reaper, for as long."""
    return _stop(scene, "reaper")


def _stop(scene: Scene, kind: str, member: Member | None = None) -> Harm:
    member = member or scene.staff.pick(scene.dice, kind)
    member.signal_all(signal.SIGSTOP)
    seconds = LEASE * scene.dice.uniform(1.2, 2.0)
    return seconds, lambda: member.signal_all(signal.SIGCONT)


def cut(scene: Scene) -> Harm:
    """All connections of a process are cut."""
    scene.lane().cut()
    return None


def refuse(scene: Scene) -> Harm:
    """They are cut, and no new ones are taken for a while."""
    lane = scene.lane()
    lane.refuse()
    return scene.dice.choice((0.3, 1.0, 1.5 * LEASE)), lane.allow


def half_close(scene: Scene) -> Harm:
    """A process hears nothing more on its connections, but is still heard."""
    scene.lane().half_close()
    return None


def delay(scene: Scene) -> Harm:
    """What a process sends takes long, now and then longer than its patience."""
    lane = scene.lane()
    lane.delay = scene.dice.uniform(0.05, 1.2)
    return scene.dice.uniform(0.5, 1.5), lambda: setattr(lane, "delay", 0.0)


def lose_replies(scene: Scene) -> Harm:
    """The server carries calls out, and the replies are lost."""
    scene.lane().lose(scene.dice.choice((Act.CUT_AFTER, Act.SWALLOW)), scene.dice.randint(1, 5))
    return None


def lose_requests(scene: Scene) -> Harm:
    """Calls never arrive."""
    scene.lane().lose(Act.CUT_BEFORE, scene.dice.randint(1, 5))
    return None


def script_flush(scene: Scene) -> Harm:
    """The server forgets all scripts."""
    scene.redis.script_flush()
    return None


def client_kill(scene: Scene) -> Harm:
    """The server cuts all connections but ours."""
    scene.redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    return None


def restart_server(scene: Scene) -> Harm:
    """The server is killed, and reads its append-only file when it is back."""
    scene.server.restart()
    return None


def fill_server(scene: Scene) -> Harm:
    """The server is out of memory for a while."""
    scene.redis.config_set("maxmemory", scene.redis.info("memory")["used_memory"] - 1000)
    return scene.dice.uniform(0.3, 1.0), lambda: scene.redis.config_set("maxmemory", 0)


# Those that let leases lapse while their holders live come twice as often: the fence is for them.
FAULTS: tuple[Callable[[Scene], Harm], ...] = (
    kill_child,
    kill_worker,
    kill_supervisor,
    kill_reaper,
    stop_worker,
    stop_holder,
    stop_holder,
    stop_reaper,
    cut,
    refuse,
    refuse,
    half_close,
    delay,
    lose_replies,
    lose_requests,
    script_flush,
    client_kill,
    restart_server,
    fill_server,
)
