"""A PostgreSQL of our own: started for a test module, and a worker's settings for it."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tests.processes import manage, wait_until
from tests.variant import variant


def program(name: str) -> str:
    """Path of one of PostgreSQL's programs: on PATH, or where Debian keeps the newest."""
    found = shutil.which(name)
    places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    assert found or places, f"{name} was not found: install postgresql"
    return found or str(places[-1])


@contextmanager
def cluster(*migrate: str) -> Iterator[str]:
    """The folder of the socket of a cluster of our own; gone at the end.

    :param migrate: arguments of `manage.py migrate`.
    """
    # PostgreSQL refuses to run as root.
    user = pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    with tempfile.TemporaryDirectory(prefix="emq-pg-") as folder:
        os.chown(folder, user.pw_uid, user.pw_gid)
        start = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={folder}"]
        start += ["-c", "fsync=off", "-c", "max_connections=40"]
        data = f"{folder}/data"
        as_user = {"cwd": folder, "env": {"PATH": os.environ["PATH"], "LC_ALL": "C"}}
        if os.geteuid() == 0:
            as_user |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        initdb = [program("initdb"), "-D", data, "-A", "trust", "-U", "emq", "--no-sync"]
        initdb += ["-E", "UTF8"]
        subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, **as_user)
        server = subprocess.Popen(
            [program("postgres"), "-D", data, *start], stderr=subprocess.DEVNULL, **as_user
        )
        try:
            wait_until(lambda: can_connect(folder))
            done = manage("migrate", *migrate, "-v", "0", **databases(folder, 0))
            assert done.returncode == 0, done.stderr
            yield folder
        finally:
            server.terminate()
            server.wait(20)


def connect(folder: str) -> psycopg.Connection:
    return psycopg.connect(host=folder, user="emq", dbname="postgres", autocommit=True)


def can_connect(folder: str) -> bool:
    try:
        connect(folder).close()
    except psycopg.OperationalError:
        return False
    return True


def databases(folder, age):
    """Settings of a worker on this cluster."""
    return variant(
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": "postgres",
                "USER": "emq",
                "HOST": folder,
                "CONN_MAX_AGE": age,
                "OPTIONS": {"application_name": "worker"},
            }
        }
    )
