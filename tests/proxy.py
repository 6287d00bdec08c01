"""A proxy in front of a server's unix socket that loses what a test tells it to lose."""

from __future__ import annotations

import threading
from collections.abc import Callable

from fault_proxy import Act, FaultProxy

from django_emq.scripts import SCRIPTS

__all__ = ["Act", "Proxy", "Rule"]


class Rule:
    """What to do with the next calls of a script."""

    def __init__(
        self, verb: str, act: Act, after: int, times: int, then: Callable[[], None] | None
    ) -> None:
        self.mark = SCRIPTS[verb].sha.encode()
        self.act = act
        self.spared = after
        self.left = times
        self.then = then
        self.fired = threading.Event()  # set once the rule has been used up

    def judge(self, data: bytes) -> Act:
        if not self.left or self.mark not in data:
            return Act.PASS
        if self.spared:
            self.spared -= 1
            return Act.PASS
        self.left -= 1
        if self.then is not None:
            self.then()
        if not self.left:
            self.fired.set()
        return self.act


class Proxy(FaultProxy):
    """Obeys rules on the calls of single scripts."""

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self._rules: list[Rule] = []

    def on(
        self,
        verb: str,
        act: Act,
        *,
        after: int = 0,
        times: int = 1,
        then: Callable[[], None] | None = None,
    ) -> Rule:
        """Do this with the next `times` requests that call the script; `then` runs with each.

        :param after: so many are passed on before.
        """
        rule = Rule(verb, act, after, times, then)
        self._rules.append(rule)
        return rule

    def judge(self, data: bytes) -> Act:
        """The first rule that wants something of this request."""
        for rule in self._rules:
            if (act := rule.judge(data)) is not Act.PASS:
                return act
        return Act.PASS
