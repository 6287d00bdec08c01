"""Signed payloads: a worker runs only what somebody with the project's SECRET_KEY enqueued.

The signature stands in the payload itself, before everything else: ``{"sig":"…","task":…}``. It
covers the job's id too, so that a payload cannot be copied into another row, and nothing of the
second line: what a job of a chain was left by the one before. Keys are rotated as Django rotates
its own: SECRET_KEY signs, SECRET_KEY_FALLBACKS are accepted.
"""

from __future__ import annotations

from django.core.signing import Signer
from django.utils.crypto import constant_time_compare

from .conf import settings
from .exceptions import ForgedPayload

SALT = "django_emq.payload"
HEAD, TAIL = '{"sig":"', '",'
SIZE = 43  # characters of a SHA-256 in base64


def sealed(payload: str, job_id: str) -> str:
    """The payload as it is admitted: signed where SIGN_PAYLOADS says so."""
    if not settings().sign_payloads:
        return payload
    return f"{HEAD}{Signer(salt=SALT).signature(f'{job_id}:{payload}')}{TAIL}{payload[1:]}"


def opened(payload: str, name: str) -> str:
    """The payload that was sealed for a name, without its signature; raises ForgedPayload."""
    if not settings().sign_payloads:
        return payload
    check(payload.encode(), name.encode())
    signed = payload.startswith(HEAD)
    return "{" + payload[len(HEAD) + SIZE + len(TAIL) :] if signed else payload


def check(payload: bytes, job_id: bytes) -> None:
    """Raise ForgedPayload unless this is what was admitted under this id.

    With SIGN_PAYLOADS at "sign", what has no signature passes: it was enqueued before.
    """
    payload = payload.partition(b"\n")[0]
    begin = len(HEAD) + SIZE + len(TAIL)
    if not payload.startswith(HEAD.encode()):
        if settings().sign_payloads == "sign":
            return
        raise ForgedPayload("The payload is not signed, and SIGN_PAYLOADS demands it.")
    signature = payload[len(HEAD) : len(HEAD) + SIZE].decode("ascii", "replace")
    value = job_id + b":{" + payload[begin:]
    signer = Signer(salt=SALT)
    for key in (signer.key, *signer.fallback_keys):
        if constant_time_compare(signature, signer.signature(value, key)):
            return
    raise ForgedPayload(
        "The payload was altered, copied from another job, or signed with a key that is neither "
        "SECRET_KEY nor among SECRET_KEY_FALLBACKS."
    )
