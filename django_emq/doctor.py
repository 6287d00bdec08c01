"""What is wrong with the server: found by asking it, as the checks find it in the settings.

Each finding is a message of Django's check framework: a stable id, a level, the fact, and as its
hint the fix. ``docs/doctor.md`` has a section for each. SILENCED_SYSTEM_CHECKS silences them too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from django.core.checks import CheckMessage, Error, Info, Warning, run_checks
from django.db import Error as DatabaseError

from . import connections, inspector, relay, rights, scripts
from .conf import settings
from .connections import Client
from .exceptions import EmqError, ServerRefused
from .inspector import ServerFacts, Strangers

OLDEST = (7, 0)
CLOCK_S = 2.0  # seconds that two clocks may differ
IDLE_S = 60  # of a connection that must not be closed: a worker beats every ten seconds
WAIT_S = 60.0  # of a row in an outbox: a relay looks every few seconds
SCRIPTS_MAX = 1000  # in the server's cache; ours are some thirty


def settings_findings() -> list[CheckMessage]:
    """What the system checks say of the settings."""
    return run_checks(tags=["emq"])


def examine(
    client: Client, facts: ServerFacts, *, role: str = "worker", scans: int = 10
) -> list[CheckMessage]:
    """All findings on a server that answers, the worst first.

    :param role: whose rights the client's user must have: ``producer``, ``worker``, ``operator``.
    :param scans: thousands of keys among which strangers are looked for.
    """
    found = [*judge(facts), *_rights(client, role), *_neighbours(client, facts, scans), *outboxes()]
    if client.shards:
        others = (one for one in inspector.servers(client) if one.node != facts.node)
        found += [finding for one in others for finding in judge(one)]
    shown = [one for one in found if not one.is_silenced()]
    return sorted(shown, key=lambda one: (-one.level, str(one.id)))


def eviction(facts: ServerFacts) -> list[CheckMessage]:
    """D010 alone, for a worker's start: jobs are lost by it though all else is right."""
    return [one for one in _memory(facts) if one.id == "django_emq.D010" and not one.is_silenced()]


def check_eviction(**kwargs: object) -> list[CheckMessage]:
    """D010 for ``manage.py check --deploy``, which may ask the server, if that answers."""
    if any(one.is_serious() for one in settings_findings()):
        return []
    try:
        return eviction(inspector.server(connections.client()))
    except EmqError:
        return []


def unreachable(error: EmqError) -> CheckMessage:
    """The finding in place of all others, when the server cannot be asked."""
    return _error(
        1,
        str(error).rstrip("."),
        f"See whether the server runs, and whether CACHES[{settings().cache_alias!r}] leads to it "
        "with the right password",
    )


def judge(facts: ServerFacts) -> list[CheckMessage]:
    """What the server's own words say, without asking anything more."""
    parts = (_kind, _memory, _persistence, _clients, _clock, _contents)
    found = [one for part in parts for one in part(facts)]
    if facts.node:
        for one in found:
            one.msg = f"{facts.node}: {one.msg}"
    return found


def _error(number: int, fact: str, fix: str) -> CheckMessage:
    return Error(f"{fact}.", hint=f"{fix}.", id=f"django_emq.D{number:03}")


def _warning(number: int, fact: str, fix: str) -> CheckMessage:
    return Warning(f"{fact}.", hint=f"{fix}.", id=f"django_emq.D{number:03}")


def _info(number: int, fact: str, fix: str) -> CheckMessage:
    return Info(f"{fact}.", hint=f"{fix}.", id=f"django_emq.D{number:03}")


def _number(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        return 0


def _size(count: float) -> str:
    for unit in ("bytes", "KB", "MB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GB"


# -- what it is -------------------------------------------------------------------------------


def _kind(facts: ServerFacts) -> Iterator[CheckMessage]:
    """D002 to D005: the server is one that the queue can use."""
    info = facts.info
    version = tuple(map(int, re.findall(r"\d+", str(info.get("redis_version", "")))[:2]))
    if version and version < OLDEST:
        yield _error(
            2,
            f"The server is {facts.name}, and the scripts need Redis 7.0 or any Valkey",
            "Upgrade the server",
        )
    if _number(info.get("cluster_enabled")) and not facts.node:
        yield _error(
            3,
            "The server is a node of a cluster, and the alias takes it for a single server",
            "Set CONNECTION_FACTORY of the alias to "
            "'django_emq.cluster.ClusterConnectionFactory': docs/cluster.md",
        )
    elif info.get("redis_mode") == "sentinel":
        yield _error(
            3,
            "The alias leads to a sentinel, which keeps no data",
            "Name it in SENTINELS of the alias, with 'django_redis.client.SentinelClient'",
        )
    if info.get("role") not in (None, "master"):
        yield _error(
            4,
            f"The server is a replica of {info.get('master_host', '?')}, so it takes no writes",
            "Lead the alias to the primary, or use Sentinel",
        )
    if _number(info.get("loading")):
        yield _error(5, "The server is still loading its data", "Wait until it is done")


# -- what it keeps ----------------------------------------------------------------------------


def _memory(facts: ServerFacts) -> Iterator[CheckMessage]:
    """D010 to D012: no job is dropped, and there is room for more."""
    info = facts.info
    policy = facts.policy
    limit = _number(info.get("maxmemory", facts.config.get("maxmemory")))
    used = _number(info.get("used_memory"))
    if policy not in ("noeviction", "unknown"):
        harm = "drops keys, and jobs with them"
        if policy.startswith("volatile"):
            harm = "drops what makes a repeated call harmless, so that jobs may run twice"
        say = _error if limit else _warning
        full = "full" if limit else "full (it has no maxmemory yet)"
        yield say(
            10,
            f"maxmemory-policy is {policy}: a server that is {full} {harm}",
            "Set maxmemory-policy to noeviction; a cache needs a server of its own",
        )
    if limit and used > 0.75 * limit:
        say = _error if used > 0.9 * limit else _warning
        yield say(
            11,
            f"{_size(used)} of {_size(limit)} of maxmemory are in use: when it is full, no job "
            "can be enqueued",
            "Raise maxmemory, run more workers, or drain what nobody needs",
        )
    elif info and not limit:
        yield _warning(
            12,
            "maxmemory is not set: a queue that grows takes the machine's memory, until the kernel "
            "ends the server",
            "Set maxmemory, below the memory of the machine",
        )


def _persistence(facts: ServerFacts) -> Iterator[CheckMessage]:
    """D020 to D023: a restart loses nothing."""
    info, config = facts.info, facts.config
    appends = config.get("appendonly", "yes" if _number(info.get("aof_enabled")) else "no")
    fix = "Set appendonly to yes, with appendfsync everysec or always"
    if not info and not config:
        return
    if appends == "no" and config and not config.get("save"):
        yield _error(
            20,
            "Neither the append-only file nor snapshots are on: a restart of the server loses "
            "every job",
            fix,
        )
    elif appends == "no":
        yield _warning(
            21,
            "The append-only file is off: a crash of the server loses what came since the last "
            "snapshot",
            fix,
        )
    elif config.get("appendfsync") == "no":
        yield _warning(
            21,
            "appendfsync is no: a crash of the machine loses what the kernel had not written, "
            "often half a minute",
            "Set appendfsync to everysec, or to always if no second may be lost",
        )
    for name in ("aof_last_write_status", "rdb_last_bgsave_status"):
        if info.get(name, "ok") != "ok":
            yield _error(
                22,
                f"The server's last write to its disk failed ({name} is {info[name]})",
                "Look into the server's log: mostly the disk is full",
            )
    replicas = _number(info.get("connected_slaves"))
    if replicas and config.get("min-replicas-to-write") == "0":
        yield _info(
            23,
            f"The server has {replicas} replicas and writes without waiting for them: a primary "
            "that is cut off takes jobs that the next one does not know",
            "Set min-replicas-to-write 1 and min-replicas-max-lag 2",
        )


# -- the way to it ----------------------------------------------------------------------------


def _clients(facts: ServerFacts) -> Iterator[CheckMessage]:
    """D030 to D032: connections live as long as they are needed, and there are enough."""
    info, config = facts.info, facts.config
    idle = _number(config.get("timeout"))
    longest = max(IDLE_S, 2 * settings().socket_timeout)
    if 0 < idle < longest:
        yield _warning(
            30,
            f"The server closes connections that are idle for {idle} s (timeout), also those of "
            "web processes between two jobs, whose next call may then fail",
            f"Set timeout to 0, or to {longest:.0f} and more",
        )
    if config.get("tcp-keepalive") == "0" and not facts.is_socket:
        yield _warning(
            31,
            "tcp-keepalive is 0: the server never notices that a worker's machine is gone, and "
            "goes on waking it for jobs in place of another one",
            "Set tcp-keepalive to 60",
        )
    most = _number(config.get("maxclients", info.get("maxclients")))
    there = _number(info.get("connected_clients"))
    if most and there > 0.8 * most:
        yield _warning(
            32,
            f"{there} of {most} connections are in use (maxclients): the next worker or web "
            "process may be refused",
            "Raise maxclients, or see who holds them with CLIENT LIST",
        )


def _clock(facts: ServerFacts) -> Iterator[CheckMessage]:
    """D033, D034: the two clocks agree, and a call is quick."""
    ahead, trip = facts.clock_ahead_s, facts.round_trip_s
    if abs(ahead) > CLOCK_S + trip:
        yield _warning(
            33,
            f"The server's clock is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} "
            "this host's: leases and delays do not mind, but run_at does, and ages are shown wrong",
            "Let both hosts follow a time server",
        )
    if trip > 0.2 * settings().socket_timeout:
        yield _warning(
            34,
            f"One call took {trip:.2f} s, and EMQ['SOCKET_TIMEOUT'] is "
            f"{settings().socket_timeout:g} s: a slow moment looks like a lost server",
            "Bring the server nearer, see what blocks it with SLOWLOG GET, or raise SOCKET_TIMEOUT",
        )


# -- what is on it ----------------------------------------------------------------------------


def _contents(facts: ServerFacts) -> Iterator[CheckMessage]:
    """D051, D052, D041: the keys are ours, and so are the scripts."""
    if facts.fence and facts.fence != scripts.VERSION:
        yield _error(
            51,
            f"The keys belong to {facts.fence!r}, and this is {scripts.VERSION}: no worker and no "
            "producer of this version may write there",
            "Upgrade the older side, or use another database or EMQ['PREFIX']",
        )
    cached = _number(facts.info.get("number_of_cached_scripts"))
    if cached > SCRIPTS_MAX:
        yield _warning(
            52,
            f"The server keeps {cached} scripts, and the queue has {len(scripts.SCRIPTS)}: "
            "somebody sends EVAL with a text that differs each time, which fills its memory",
            "Find who does, and pass values as ARGV; SCRIPT FLUSH is harmless for the queue",
        )
    if facts.refused:
        yield _info(
            41,
            f"The user may not call {', '.join(facts.refused)}: what these would tell was not "
            "judged",
            "Let the doctor run as a user with the operator's rights: docs/security.md",
        )


ROLES = {"producer": rights.PRODUCER, "worker": rights.WORKER, "operator": rights.OPERATOR}


def _rights(client: Client, role: str) -> Iterator[CheckMessage]:
    """D040: the user may do what its role needs."""
    try:
        lacking = rights.missing(client, _queues(client), ROLES[role])
    except ServerRefused as refusal:
        lacking = [str(refusal).rstrip(".")]
    for sentence in lacking:
        fact, _, grant = sentence.partition(". Give it ")
        yield _error(
            40,
            f"{fact}, which a {role} must",
            f"ACL SETUSER {rights.user(client)} {grant}" if grant else "See docs/security.md",
        )


def _queues(client: Client) -> Sequence[str]:
    """Those on the server; those of the settings where there are none, or may not be listed."""
    conf = settings()
    try:
        return inspector.queues(client)[:100] or [conf.default_queue]
    except ServerRefused:
        return [part for name in (conf.default_queue, *conf.queues) for part in conf.parts(name)]


def _neighbours(client: Client, facts: ServerFacts, scans: int) -> Iterator[CheckMessage]:
    """D050: nobody else uses the queue's database."""
    try:
        found: Strangers = inspector.strangers(client, scans=scans)
    except ServerRefused:
        yield _info(
            41,
            "The user may not call SCAN: whether others use the database was not judged",
            "Let the doctor run as a user with the operator's rights: docs/security.md",
        )
        return
    if found.count:
        part = "" if found.complete else " that were looked at"
        yield _warning(
            50,
            f"{found.count} of the {found.examined} keys{part} in database {facts.database} are "
            f"not the queue's, for instance {found.example!r}: who clears them with FLUSHDB, as "
            "cache.clear() does, deletes every job",
            "Give the queue a database of its own, better a server of its own",
        )


def outboxes() -> Iterator[CheckMessage]:
    """D060, D061: the outboxes in use can be read, and nothing waits there for long."""
    for alias in relay.watched():
        try:
            there = relay.waiting(alias)
        except DatabaseError as error:
            yield _error(
                61,
                f"The outbox of the database {alias!r} cannot be read: {error}",
                "See whether the database runs, and whether manage.py migrate django_emq "
                f"--database {alias} has been run",
            )
            continue
        if there.oldest_s is not None and there.oldest_s > WAIT_S:
            yield _warning(
                60,
                f"{there.rows} rows with {there.jobs} jobs wait in the outbox of the database "
                f"{alias!r}, the oldest for {inspector.span(there.oldest_s)}: no relay runs, or it "
                "cannot push them",
                "Run a worker, emq_reaper or emq_relay, and look into its log",
            )


def is_sick(findings: Iterable[CheckMessage]) -> bool:
    """Whether one of the findings is an error."""
    return any(one.is_serious() for one in findings)
