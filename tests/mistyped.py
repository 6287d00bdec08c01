"""Calls that a type checker must refuse, each with its reason; `make lint` sees that it does.

Nobody runs this. The reason is mypy's code, in a comment at the end of the line.
"""

from __future__ import annotations

import django_emq as emq


@emq.task
def send(order_id: int, *, email: str = "") -> str:
    return f"{order_id} {email}"


@emq.task(queue="mail")
async def fetch(url: str) -> bytes:
    return url.encode()


def arguments_are_those_of_the_function() -> None:
    send.enqueue("1")  # arg-type
    send.enqueue(1, "a@example.org")  # call-arg
    send.using(priority=1).enqueue(1, mail="a@example.org")  # call-arg
    send.job()  # call-arg
    send()  # call-arg
    fetch.enqueue(url=1)  # arg-type


async def so_are_those_of_the_async_forms() -> None:
    await send.aenqueue("1")  # arg-type
    await fetch.aenqueue()  # call-arg


def options_are_known() -> None:
    emq.task(max_atempts=3)  # call-overload


def what_is_answered_is_known() -> None:
    job: str = send.enqueue(1)  # assignment
    text: int = send(1)  # assignment
    print(job, text, emq.current_job().tokn)  # attr-defined
    with emq.effect("a") as once:
        once.first = True  # misc
