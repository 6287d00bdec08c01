"""A PostgreSQL of our own: started for a test module, gone at its end."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
from django.db import connections as databases

from tests.processes import manage, wait_until
from tests.variant import variant


def program(name: str) -> str:
    """Path of one of PostgreSQL's programs: on PATH, or where Debian keeps the newest."""
    found = shutil.which(name)
    places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    assert found or places, f"{name} was not found: install postgresql"
    return found or str(places[-1])


@contextlib.contextmanager
def cluster() -> Iterator[str]:
    """The folder of the socket of an empty cluster."""
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
            yield folder
        finally:
            server.terminate()
            server.wait(20)


def entry(folder: str, **options: object) -> dict[str, object]:
    """The cluster's database as an entry of DATABASES."""
    engine = "django.db.backends.postgresql"
    return {"ENGINE": engine, "NAME": "postgres", "USER": "emq", "HOST": folder, **options}


@contextlib.contextmanager
def alias(name: str, folder: str, **options: object) -> Iterator[None]:
    """Have this process know the cluster's database by an alias, during the block."""
    made = databases.configure_settings({"default": entry(folder, **options)})
    databases.settings[name] = made["default"]
    try:
        yield
    finally:
        databases[name].close()
        del databases[name]
        del databases.settings[name]


def connect(folder: str) -> psycopg.Connection:
    return psycopg.connect(host=folder, user="emq", dbname="postgres", autocommit=True)


def can_connect(folder: str) -> bool:
    try:
        connect(folder).close()
    except psycopg.OperationalError:
        return False
    return True


def databases_of(folder: str, age: int) -> dict[str, str]:
    """Settings of a worker on this cluster."""
    options = {"application_name": "worker"}
    return variant(DATABASES={"default": entry(folder, CONN_MAX_AGE=age, OPTIONS=options)})


def migrate(folder: str, *args: str) -> None:
    """Make the tables, as `manage.py migrate` does."""
    done = manage("migrate", *args, "-v", "0", **databases_of(folder, 0))
    assert done.returncode == 0, done.stderr
