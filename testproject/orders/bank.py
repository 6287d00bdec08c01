"""The bank: another company, whose books are not ours. Here a file takes the place of the network.

It does what payment services do: it carries out a request once for each key, and may be away.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from django.conf import settings


class BankAway(Exception):
    """The bank does not answer. Ask again later."""


class Bank:
    """One account at the bank.

    :param folder: where it keeps its books. While a file `bank-away` is there, it is away.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.away = folder / "bank-away"
        self._books = folder / "bank.sqlite3"
        self._query("CREATE TABLE IF NOT EXISTS charge (key TEXT PRIMARY KEY, cents INTEGER)")

    def charge(self, cents: int, *, key: str) -> str:
        """Take money, once for each key; answer the number of the payment."""
        if self.away.exists():
            raise BankAway("503 Service Unavailable")
        self._query("INSERT OR IGNORE INTO charge VALUES (?, ?)", key, cents)
        ((number,),) = self._query("SELECT rowid FROM charge WHERE key = ?", key)
        return f"PAY-{number}"

    def charges(self) -> list[int]:
        """All amounts that were ever taken."""
        return [cents for (cents,) in self._query("SELECT cents FROM charge ORDER BY rowid")]

    def _query(self, sql: str, *values: object) -> list[tuple[int, ...]]:
        with closing(sqlite3.connect(self._books, timeout=30)) as books, books:
            return books.execute(sql, values).fetchall()


def our_bank() -> Bank:
    """The shop's account."""
    return Bank(settings.SHOP_DIR)
