"""Where a run can be cut off: at each SQL statement, and before its settlement."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from django.db import connections

from ..context import JobContext


class Crash(BaseException):
    """The process ends here: nothing is settled, and no transaction is committed."""


class Trap:
    """Follows one run along its points, and springs at one of them, once.

    :param hit: whether this is the one, given its number and its text.
    """

    def __init__(
        self, hit: Callable[[int, str], bool], spring: Callable[[JobContext], None]
    ) -> None:
        self.reached: list[str] = []
        self.outside: list[bool] = []  # of each point, whether no transaction of the job is open
        self.sprung = False
        self.depth = 0  # savepoints that are not the job's
        self._hit = hit
        self._spring = spring

    def watch(self, stack: ExitStack, context: JobContext) -> None:
        """Follow what this run says to any database."""
        for alias in connections:

            def each(execute: Any, sql: str, params: Any, many: bool, about: Any) -> Any:
                if not sql.startswith("SAVEPOINT"):
                    inside = len(about["connection"].savepoint_ids) > self.depth
                    try:
                        self.reach(sql, context, outside=not inside)
                    except Crash:
                        if sql.startswith("RELEASE"):  # a COMMIT that never comes
                            execute(sql.replace("RELEASE", "ROLLBACK TO", 1), params, many, about)
                        raise
                return execute(sql, params, many, about)

            stack.enter_context(connections[alias].execute_wrapper(each))

    def reach(self, point: str, context: JobContext, *, outside: bool = True) -> None:
        """Note a point; spring if it is the one."""
        if self.sprung:
            return
        self.reached.append(point)
        self.outside.append(outside)
        if self._hit(len(self.reached) - 1, point):
            self.sprung = True
            self._spring(context)
