"""What the commands share: console, types of options, names of queues."""

from __future__ import annotations

import logging
import re
import unicodedata
from argparse import ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Iterable
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from django_emq import inspector
from django_emq.conf import settings
from django_emq.connections import Client
from django_emq.exceptions import EmqError
from django_emq.keys import check_queue


class EmqCommand(BaseCommand):
    """A command of the queue."""

    # What a check finds wrong would cost jobs: no command starts with such an error.
    requires_system_checks: tuple[str, ...] = ("emq",)

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> Any:
        """Keep the line breaks of the help."""
        return super().create_parser(
            prog_name, subcommand, formatter_class=RawDescriptionHelpFormatter, **kwargs
        )

    def say(self, line: str) -> None:
        """Print a line at once, also into a pipe."""
        self.stdout.write(line)
        self.stdout.flush()

    def log_to_console(self, verbosity: int) -> None:
        """Show our log on stderr where the project has not said what to do with it."""
        logger = logging.getLogger("django_emq")
        if not logger.hasHandlers():
            handler = logging.StreamHandler()
            handler.setFormatter(
                logging.Formatter("%(asctime)s %(process)d %(levelname)s %(message)s")
            )
            logger.addHandler(handler)
            levels = (logging.WARNING, logging.INFO, logging.DEBUG)
            logger.setLevel(levels[min(verbosity, 2)])


def plain(text: str, limit: int = 1000) -> str:
    """The text in one line of at most `limit` characters, safe to print.

    All that steers a terminal is shown as what it is: \\x1b, \\n.
    Names and errors are what jobs and strangers wrote. Control characters could hide or forge
    lines, and those that turn the direction of writing could show one name as another.
    """
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char
        if char == " " or unicodedata.category(char)[0] not in "CZ"
        else char.encode("unicode_escape").decode()
        for char in text
    )


def read_queues(names: Iterable[str]) -> tuple[str, ...]:
    """The queues given on the command line, each once."""
    queues = tuple(dict.fromkeys(names))
    try:
        for queue in queues:
            check_queue(queue, settings().prefix)
    except EmqError as error:
        raise CommandError(str(error)) from error
    return queues


def read_weights(names: Iterable[str]) -> tuple[tuple[str, ...], dict[str, int]]:
    """The queues given as ``mail:3 default``, each once, and the weights that are given.

    Partitions of a queue have one weight together, under its name.
    """
    weights: dict[str, int] = {}
    pairs = [name.partition(":") for name in names]
    queues = read_queues(queue for queue, _, _ in pairs)
    for queue, colon, number in pairs:
        if not colon:
            continue
        if not re.fullmatch("[1-9][0-9]{0,2}", number):
            raise CommandError(
                f"The weight of queue {queue!r} is {number!r}. Use a whole number from 1 to 999."
            )
        whole = settings().whole(queue)
        if weights.setdefault(whole, int(number)) != int(number):
            raise CommandError(f"Queue {whole!r} has two weights. Give it one.")
    return queues, weights


def all_parts(client: Client, names: Iterable[str], *, busy: bool = False) -> tuple[str, ...]:
    """The queues on the server of the names, each once; see `inspector.parts`."""
    found = [part for name in names for part in inspector.parts(client, name, busy=busy)]
    return tuple(dict.fromkeys(found))


def positive(text: str) -> int:
    """A whole number from 1."""
    return _whole(text, 1)


def natural(text: str) -> int:
    """A whole number from 0."""
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise ArgumentTypeError(f"{text!r} is not a whole number from {least}")
    return value


def seconds(text: str) -> float:
    """A number of seconds from 0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value
