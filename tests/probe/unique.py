"""Tasks of which only one job at a time may wait or run."""

import django_emq as emq
from tests.probe.tasks import _append


@emq.task(unique=True)
def sync(user_id, kind="full"):
    _append(f"{user_id} {kind}")


@emq.task(unique="user_id")
def mail(user_id, text=""):
    _append(f"{user_id} {text}")


def check_name(host, **options):
    """The name of a check: the host alone, whatever the options."""
    return f"hc-{host}"


@emq.task(unique=check_name)
def check(host, **options):
    _append(host)


@emq.task(unique="user_id", on_conflict="keep_last")
def index(user_id, version):
    _append(f"{user_id} {version}")


@emq.task(unique="user_id", on_conflict="debounce", unique_for=30, max_wait=60)
def save(user_id, text):
    _append(f"{user_id} {text}")


@emq.task(unique="user_id", on_conflict="throttle", unique_for=3600)
def remind(user_id):
    _append(user_id)
