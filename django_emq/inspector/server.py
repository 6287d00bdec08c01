"""The server itself: version, memory, persistence, and whether it has our scripts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from django.utils.translation import gettext as _

from .. import scripts
from ..connections import Client
from ..keys import reserve_keys
from ._read import ask, number, text, texts

CONFIG = ("maxmemory", "maxmemory-policy", "appendonly", "appendfsync", "save")


@dataclass(frozen=True, slots=True)
class ScriptFact:
    """One of our scripts on this server."""

    name: str
    sha: str
    loaded: bool | None  # None when the server does not tell
    size: int  # bytes of its source


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What the server says of itself. What its ACL refuses is left out and named in `refused`."""

    fence: str  # the version that its keys belong to; '' when nothing was written yet
    info: dict[str, Any] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)
    scripts: list[ScriptFact] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Product and version."""
        for product in ("valkey", "redis"):
            if version := self.info.get(f"{product}_version"):
                if product == "redis" and self.info.get("server_name") == "valkey":
                    continue
                return f"{product.capitalize()} {version}"
        return ""


def server(client: Client) -> ServerFacts:
    """Ask the server about itself, in one round trip."""
    table = list(scripts.SCRIPTS.values())
    fence = reserve_keys(client.prefix).version

    def build(pipeline: Any) -> None:
        pipeline.get(fence)
        pipeline.info()
        pipeline.config_get(*CONFIG)
        pipeline.script_exists(*(script.sha for script in table))

    found, info, config, loaded = ask(client, build, loose=True)
    names = {"GET": found, "INFO": info, "CONFIG GET": config, "SCRIPT EXISTS": loaded}
    refused = [name for name, reply in names.items() if isinstance(reply, Exception)]
    flags = loaded if isinstance(loaded, list) else [None] * len(table)
    facts = ServerFacts(
        fence=text(found),
        info=info if isinstance(info, dict) else {},
        config=_settings(config),
        scripts=[
            ScriptFact(script.name, script.sha, None if there is None else bool(there), size)
            for script, there in zip(table, flags, strict=True)
            for size in [len(script.source)]
        ],
        refused=refused,
    )
    facts.findings.extend(findings(facts))
    return facts


def _settings(config: Any) -> dict[str, str]:
    if not isinstance(config, dict):
        return {}
    if all(isinstance(name, str) for name in config):  # redis-py has decoded it
        return {name: str(value) for name, value in config.items()}
    return texts(config)


def findings(facts: ServerFacts) -> list[str]:
    """What may cost jobs, a sentence each with the way out."""
    info, config = facts.info, facts.config
    found = []
    policy = config.get("maxmemory-policy") or info.get("maxmemory_policy", "")
    limited = number(info.get("maxmemory", config.get("maxmemory")))
    if limited and policy and policy != "noeviction":
        found.append(
            _(
                "maxmemory-policy is %(policy)s: when memory is full the server drops keys, jobs "
                "among them. Set it to noeviction."
            )
            % {"policy": policy}
        )
    used = number(info.get("used_memory"))
    if limited and used > 0.9 * limited:
        found.append(
            _("More than 90 % of maxmemory is in use: soon no job can be enqueued. Raise it.")
        )
    if config and config.get("appendonly") == "no" and not config.get("save"):
        found.append(
            _(
                "Neither the append-only file nor snapshots are on: a restart of the server loses "
                "all jobs. Set appendonly to yes."
            )
        )
    elif config and config.get("appendonly") == "no":
        found.append(
            _(
                "Only snapshots are on: a crash of the server loses what came since the last one. "
                "Set appendonly to yes."
            )
        )
    if info.get("role") not in (None, "master"):
        found.append(_("This is a replica: the queue must be led to the primary."))
    if facts.fence and facts.fence != scripts.VERSION:
        found.append(
            _("The keys belong to %(found)s, this is %(ours)s.")
            % {"found": facts.fence, "ours": scripts.VERSION}
        )
    return found
