"""Settings: one dict, typed, read late, refused with a sentence that shows the way out."""

from __future__ import annotations

import ast
import math
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_emq import conf
from django_emq.backoff import DEFAULT, Exponential, Fixed
from django_emq.conf import NAMES, Problem, QueueSettings, Settings
from django_emq.plans import Plan

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"


def problem(emq: Any) -> Problem:
    """The one problem of these settings."""
    with override_settings(EMQ=emq):
        (only,) = conf.problems()
        with pytest.raises(ImproperlyConfigured) as caught:
            conf.settings()
    assert str(caught.value) == only.sentence
    return only


# -- good settings -------------------------------------------------------------------------------


def test_the_defaults(settings: Any) -> None:
    """A project without EMQ, and one with an empty dict, get the documented defaults."""
    settings.EMQ = {}
    assert conf.settings() == Settings()
    del settings.EMQ
    assert conf.read() == (Settings(), [])
    assert Settings() == Settings(
        cache_alias="emq",
        prefix="emq",
        default_queue="default",
        lease=15,
        max_attempts=5,
        max_stalls=3,
        backoff=Exponential(base=5, factor=3, cap=3600),
        max_payload=1_048_576,
        dead_max=10_000,
        dead_ttl=15_552_000,
        effect_ttl=31_536_000,
        done_max=100_000,
        socket_timeout=5,
        async_concurrency=100,
        wait_replicas=0,
        wait_timeout=None,
        middleware=(),
        queues={},
    )


def test_every_setting_is_read(settings: Any) -> None:
    """Each name of EMQ reaches the attribute of the same name."""
    settings.EMQ = {
        "CACHE_ALIAS": "jobs",
        "PREFIX": "shop",
        "DEFAULT_QUEUE": "main",
        "LEASE": 1.5,
        "MAX_ATTEMPTS": 1,
        "MAX_STALLS": 1000,
        "BACKOFF": 30,
        "MAX_PAYLOAD": 100,
        "DEAD_MAX": 1,
        "DEAD_TTL": 60,
        "EFFECT_TTL": 61,
        "DONE_MAX": 2,
        "SOCKET_TIMEOUT": 0.1,
        "ASYNC_CONCURRENCY": 2,
        "TRAIL": "all",
        "REDACT": ["pin"],
        "SIGN_PAYLOADS": "sign",
        "WAIT_REPLICAS": 2,
        "WAIT_TIMEOUT": 0.05,
        "ON_COMMIT": True,
        "OUTBOX": "default",
        "TIMEOUT": 60,
        "KILL_AFTER": 0.5,
        "LOG_MAX": 50,
        "MIDDLEWARE": ["shop.jobs.timing"],
        "SCHEDULES": {"digest": {"task": "shop.tasks.digest", "cron": "@daily"}, "poll": None},
        "QUEUES": {"mail": {"LEASE": 60}},
    }
    assert set(settings.EMQ) == set(NAMES)
    assert conf.problems() == []
    assert conf.settings() == Settings(
        cache_alias="jobs",
        prefix="shop",
        default_queue="main",
        lease=1.5,
        max_attempts=1,
        max_stalls=1000,
        backoff=Fixed(30),
        max_payload=100,
        dead_max=1,
        dead_ttl=60,
        effect_ttl=61,
        done_max=2,
        socket_timeout=0.1,
        async_concurrency=2,
        trail="all",
        redact=("pin",),
        sign_payloads="sign",
        wait_replicas=2,
        wait_timeout=0.05,
        on_commit=True,
        outbox="default",
        timeout=60,
        kill_after=0.5,
        log_max=50,
        middleware=("shop.jobs.timing",),
        schedules={"digest": Plan(task="shop.tasks.digest", cron="@daily"), "poll": None},
        queues={"mail": QueueSettings(60, 1, 1000, Fixed(30), 2, 0.05, True, "default", 60, 0.5)},
    )


@pytest.mark.parametrize("value", ["ALL", "", None, True, ["all"]])
def test_a_trail_that_is_none_is_refused(settings: Any, value: object) -> None:
    """Only the three words are one."""
    settings.EMQ = {"TRAIL": value}
    (problem,) = conf.problems()
    assert problem.sentence == f"EMQ['TRAIL'] is {value!r}. Give 'off', 'notable' or 'all'."


def test_a_queue_falls_back_to_the_general_settings(settings: Any) -> None:
    """Only what its own dict names differs; a queue without a dict differs in nothing."""
    settings.EMQ = {
        "LEASE": 20,
        "QUEUES": {
            "mail": {"MAX_ATTEMPTS": 10, "BACKOFF": timedelta(minutes=1)},
            "slow": {"LEASE": 600, "MAX_STALLS": 1},
            "dear": {"WAIT_REPLICAS": 1, "WAIT_TIMEOUT": 2},
            "plain": {},
        },
    }
    general = QueueSettings(20, 5, 3, DEFAULT, wait_replicas=0, wait_timeout=None)
    values = conf.settings()
    assert values.queue("mail") == QueueSettings(20, 10, 3, Fixed(60), 0, None)
    assert values.queue("slow") == QueueSettings(600, 5, 1, DEFAULT, 0, None)
    assert values.queue("dear") == QueueSettings(20, 5, 3, DEFAULT, 1, 2)
    assert values.queue("plain") == general
    assert values.queue("never-named") == general


def test_settings_cannot_be_changed_in_place() -> None:
    """What one caller does to them cannot reach another."""
    values = conf.settings()
    with pytest.raises(AttributeError):
        values.lease = 1
    with pytest.raises(TypeError):
        values.queues["mail"] = values.queue("mail")


def test_settings_are_kept_until_they_change(settings: Any) -> None:
    """override_settings takes effect at once, and so does its end."""
    settings.EMQ = {"LEASE": 20}
    assert conf.settings() is conf.settings()
    with override_settings(EMQ={"LEASE": 30}):
        assert conf.settings().lease == 30
    assert conf.settings().lease == 20


def test_only_a_change_of_emq_or_caches_forgets_the_settings(settings: Any) -> None:
    """What was derived from an alias must not outlive it; other settings are no concern."""
    before = conf.settings()
    settings.LANGUAGE_CODE = "de"
    assert conf.settings() is before
    settings.CACHES = dict(settings.CACHES)
    assert conf.settings() is not before


def test_bad_settings_are_not_remembered(settings: Any) -> None:
    """An error is raised each time, and is gone when the settings are right."""
    settings.EMQ = {"LEASE": 0}
    for _ in range(2):
        with pytest.raises(ImproperlyConfigured):
            conf.settings()
    settings.EMQ = {"LEASE": 1}
    assert conf.settings().lease == 1


def test_threads_read_the_same_settings(settings: Any) -> None:
    """The first use may come from many threads at once."""
    settings.EMQ = {"LEASE": 33}
    start = threading.Barrier(8)
    with ThreadPoolExecutor(8) as threads:
        seen = list(threads.map(lambda _: (start.wait(), conf.settings())[1], range(8)))
    assert seen == [conf.settings()] * 8


def test_import_does_not_read_django_settings() -> None:
    """A module may import the queue before the project is configured."""
    code = "import django_emq.conf, django.conf; print(django.conf.settings.configured)"
    told = subprocess.check_output(
        [sys.executable, "-c", code], cwd=PAGE.parent.parent, env={}, text=True
    )
    assert told == "False\n"


# -- bad values ----------------------------------------------------------------------------------

NOT_A_NUMBER = ["5", None, True, False, math.nan, math.inf, -math.inf, -1, [], timedelta(1)]
NUMBERS = ["LEASE", "DEAD_TTL", "SOCKET_TIMEOUT"]
WHOLE = ["MAX_ATTEMPTS", "MAX_STALLS", "MAX_PAYLOAD", "DEAD_MAX", "ASYNC_CONCURRENCY"]


@pytest.mark.parametrize("name", NUMBERS + WHOLE)
@pytest.mark.parametrize("value", [*NOT_A_NUMBER, 0, 10**12], ids=repr)
def test_a_number_out_of_range_is_refused(name: str, value: Any) -> None:
    """The sentence names the setting, the value, and what to give. True is not 1."""
    found = problem({name: value})
    assert found.kind == "value"
    assert found.setting == f"EMQ['{name}']"
    assert found.sentence.startswith(f"EMQ['{name}'] is {value!r}. Give a")
    assert re.search(r"number of [a-z ]+ from [0-9.]+ to [0-9]+\.$", found.sentence)


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_number_is_not_a_float(name: str) -> None:
    """Half an attempt means nothing, and 5.0 is a sign of a mistaken sum."""
    assert f"EMQ['{name}'] is 5.0. Give a whole number" in problem({name: 5.0}).sentence


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("LEASE", 1, 86_400),
        ("MAX_ATTEMPTS", 1, 1000),
        ("MAX_STALLS", 1, 1000),
        ("MAX_PAYLOAD", 1, 536_870_912),
        ("DEAD_MAX", 1, 10_000_000),
        ("DEAD_TTL", 1, 315_360_000),
        ("SOCKET_TIMEOUT", 0.1, 3600),
        ("ASYNC_CONCURRENCY", 1, 10_000),
        ("WAIT_REPLICAS", 0, 100),
    ],
)
def test_the_bounds_of_a_number(name: str, low: float, high: int) -> None:
    """Both ends are allowed, the next value outside is not, and the sentence says both ends."""
    for value in (low, high):
        with override_settings(EMQ={name: value}):
            assert conf.problems() == []
            assert getattr(conf.settings(), name.lower()) == value
    for value in (low - 0.05 if name == "SOCKET_TIMEOUT" else low - 1, high + 1):
        assert problem({name: value}).sentence.endswith(f"from {low} to {high}.")


@pytest.mark.parametrize(
    ("emq", "setting", "words"),
    [
        ({"CACHE_ALIAS": ""}, "CACHE_ALIAS", "is ''. Give the name of an alias in CACHES."),
        ({"CACHE_ALIAS": None}, "CACHE_ALIAS", "is None. Give the name"),
        ({"PREFIX": "a b"}, "PREFIX", "is 'a b'. Give 1 to 64 of the characters"),
        ({"PREFIX": "emq\n"}, "PREFIX", r"is 'emq\n'. Give 1 to 64"),
        ({"PREFIX": "{emq}"}, "PREFIX", "is '{emq}'. Give 1 to 64"),
        ({"PREFIX": "x" * 65}, "PREFIX", "Give 1 to 64"),
        ({"PREFIX": 5}, "PREFIX", "is 5. Give 1 to 64"),
        ({"DEFAULT_QUEUE": "a:b"}, "DEFAULT_QUEUE", "Queue name 'a:b' is not allowed. Use 1 to"),
        ({"DEFAULT_QUEUE": "x" * 129}, "DEFAULT_QUEUE", "is not allowed. Use 1 to 128"),
        ({"DEFAULT_QUEUE": "q\n"}, "DEFAULT_QUEUE", "is not allowed"),
        ({"DEFAULT_QUEUE": None}, "DEFAULT_QUEUE", "is None. Queue name None is not allowed"),
        ({"WAIT_TIMEOUT": 0}, "WAIT_TIMEOUT", "is 0. Give a number of seconds from 0.01 to 60."),
        ({"WAIT_TIMEOUT": "1"}, "WAIT_TIMEOUT", "is '1'. Give a number of seconds"),
        ({"BACKOFF": -1}, "BACKOFF", "is -1. Fixed: seconds is -1. Give a number of seconds"),
        ({"BACKOFF": True}, "BACKOFF", "is True. Backoff True is no policy. Give"),
        ({"BACKOFF": "no.such"}, "BACKOFF", "is 'no.such'. Backoff 'no.such' cannot be imported"),
        ({"QUEUES": ["mail"]}, "QUEUES", "is ['mail']. Give a dict of dicts"),
        ({"QUEUES": None}, "QUEUES", "is None. Give a dict of dicts"),
    ],
)
def test_a_bad_value_is_refused(emq: Any, setting: str, words: str) -> None:
    """The sentence names the setting, the value and the way out."""
    found = problem(emq)
    assert found.kind == "value"
    assert found.setting == f"EMQ['{setting}']"
    assert found.sentence.startswith(found.setting)
    assert words in found.sentence


@pytest.mark.parametrize("name", ["a", "x" * 128, "A-Z.a_z-09"])
def test_a_queue_may_have_each_allowed_name(name: str) -> None:
    """As the default queue, and in QUEUES."""
    with override_settings(EMQ={"DEFAULT_QUEUE": name, "QUEUES": {name: {"LEASE": 2}}}):
        assert conf.settings().queue(conf.settings().default_queue).lease == 2


@pytest.mark.parametrize(
    ("queues", "setting", "words"),
    [
        ({"a b": {}}, "['a b']", "Queue name 'a b' is not allowed. Use 1 to 128"),
        ({5: {}}, "[5]", "Queue name 5 is not allowed"),
        ({"mail": 60}, "['mail']", "is 60. Give a dict, for instance {'LEASE': 60}."),
        ({"mail": {"LEASE": 0}}, "['mail']['LEASE']", "is 0. Give a number of seconds from 1"),
        ({"mail": {"MAX_ATTEMPTS": True}}, "['mail']['MAX_ATTEMPTS']", "is True. Give a whole"),
        ({"mail": {"BACKOFF": "x"}}, "['mail']['BACKOFF']", "Backoff 'x' cannot be imported"),
    ],
)
def test_a_bad_value_of_a_queue_is_refused(queues: Any, setting: str, words: str) -> None:
    """The sentence names the queue too."""
    found = problem({"QUEUES": queues})
    assert found.kind == "value"
    assert found.setting == f"EMQ['QUEUES']{setting}"
    assert found.sentence.startswith(found.setting)
    assert words in found.sentence


@pytest.mark.parametrize("emq", [None, [], "LEASE", 5, {"LEASE"}])
def test_emq_is_a_dict(emq: Any) -> None:
    """Anything else is refused as a whole."""
    found = problem(emq)
    assert found.sentence == f"EMQ is {emq!r}. Give a dict, for instance {{'LEASE': 60}}."


def test_a_long_value_is_not_shown_whole() -> None:
    """A sentence stays a sentence."""
    assert len(problem({"LEASE": "x" * 10_000}).sentence) < 200


# -- unknown names -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("LEASES", "LEASE"),
        ("lease", "LEASE"),
        ("max_attempt", "MAX_ATTEMPTS"),
        ("ALIAS", "CACHE_ALIAS"),
        ("QUEUE", "QUEUES"),
        ("SOCKET_TIME_OUT", "SOCKET_TIMEOUT"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_known_one(name: str, nearest: str) -> None:
    """A typing error must not leave a default in force; all known names are listed."""
    found = problem({name: 5})
    assert found.kind == "unknown"
    assert found.setting == f"EMQ['{name}']"
    assert found.sentence.startswith(f"EMQ['{name}'] is not a setting.")
    assert f"The nearest known name is {nearest!r}." in found.sentence
    assert all(known in found.sentence for known in NAMES)


@pytest.mark.parametrize("name", ["zzz", "", 5, None, ("LEASE",)])
def test_a_name_like_no_other_is_refused_too(name: Any) -> None:
    """Whatever it is, the known names are listed."""
    found = problem({name: 5})
    assert found.kind == "unknown"
    assert f"EMQ[{name!r}] is not a setting. The nearest known name is '" in found.sentence


def test_an_unknown_name_of_a_queue_is_refused() -> None:
    """Only what a queue can have is offered."""
    found = problem({"QUEUES": {"mail": {"MAX_ATEMPTS": 2}}})
    assert found.sentence == (
        "EMQ['QUEUES']['mail']['MAX_ATEMPTS'] is not a setting. The nearest known name is "
        "'MAX_ATTEMPTS'. Known here are LEASE, MAX_ATTEMPTS, MAX_STALLS, BACKOFF, "
        "WAIT_REPLICAS, WAIT_TIMEOUT, ON_COMMIT, OUTBOX, TIMEOUT, KILL_AFTER, PARTITIONS."
    )


def test_a_general_setting_in_a_queue_is_sent_to_its_place() -> None:
    """The name is right, the place is not."""
    found = problem({"QUEUES": {"mail": {"PREFIX": "x"}}})
    assert found.kind == "unknown"
    assert "PREFIX holds for all queues: move it to EMQ itself." in found.sentence


# -- contradictions ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("emq", "settings_named"),
    [
        ({"DEFAULT_QUEUE": "emq"}, ["EMQ['DEFAULT_QUEUE']", "EMQ['PREFIX']", "'emq'"]),
        ({"PREFIX": "default"}, ["EMQ['DEFAULT_QUEUE']", "EMQ['PREFIX']", "'default'"]),
        ({"QUEUES": {"emq": {}}}, ["EMQ['QUEUES']['emq']", "EMQ['PREFIX']", "'emq'"]),
        (
            {"PREFIX": "mail", "QUEUES": {"mail": {}}},
            ["EMQ['QUEUES']['mail']", "EMQ['PREFIX']", "'mail'"],
        ),
    ],
)
def test_a_queue_named_like_the_prefix_names_both_settings(
    emq: Any, settings_named: list[str]
) -> None:
    """The prefix is the reserved word: its braces hold the keys of the deployment."""
    found = problem(emq)
    assert found.kind == "contradiction"
    assert all(words in found.sentence for words in settings_named)
    assert "change one of the two" in found.sentence


@pytest.mark.parametrize(
    ("emq", "setting"),
    [
        ({"WAIT_TIMEOUT": 5}, "EMQ['WAIT_TIMEOUT']"),
        ({"WAIT_TIMEOUT": 1, "SOCKET_TIMEOUT": 0.5}, "EMQ['WAIT_TIMEOUT']"),
        ({"QUEUES": {"mail": {"WAIT_TIMEOUT": 9}}}, "EMQ['QUEUES']['mail']['WAIT_TIMEOUT']"),
    ],
)
def test_a_wait_that_outlasts_the_connection(emq: Any, setting: str) -> None:
    """The answer would come to nobody."""
    found = problem(emq)
    assert found.kind == "contradiction"
    assert found.setting == setting
    assert "EMQ['SOCKET_TIMEOUT'] is" in found.sentence


def test_emq_is_a_fine_queue_name_under_another_prefix(settings: Any) -> None:
    """The reserved word is the prefix, not the letters e m q."""
    settings.EMQ = {"PREFIX": "shop", "DEFAULT_QUEUE": "emq", "QUEUES": {"emq": {"LEASE": 2}}}
    assert conf.problems() == []
    assert conf.settings().queue("emq").lease == 2


def test_all_problems_are_found_at_once(settings: Any) -> None:
    """One run of the checks is enough to put a file right."""
    settings.EMQ = {
        "LEASES": 1,
        "LEASE": 0,
        "DEFAULT_QUEUE": "emq",
        "QUEUES": {"a b": {}, "mail": {"LEASE": "x", "PREFIX": 1}, "emq": {}},
    }
    assert [found.setting for found in conf.problems()] == [
        "EMQ['LEASES']",
        "EMQ['LEASE']",
        "EMQ['QUEUES']['a b']",
        "EMQ['QUEUES']['mail']['LEASE']",
        "EMQ['QUEUES']['mail']['PREFIX']",
        "EMQ['DEFAULT_QUEUE']",
        "EMQ['QUEUES']['emq']",
    ]


# -- the page ------------------------------------------------------------------------------------


def test_each_setting_has_a_row_with_its_default() -> None:
    """docs/settings.md shows exactly the settings that exist, each with its true default."""
    rows = dict(re.findall(r"^\| `([A-Z_]+)` \| `([^`]+)` \|", PAGE.read_text(), re.MULTILINE))
    assert set(rows) == set(NAMES)
    with override_settings(EMQ={name: ast.literal_eval(default) for name, default in rows.items()}):
        assert conf.settings() == Settings()
