"""The test project's settings, with the probe tasks and a database file that workers share."""

import json
import os

from testproject.settings import *

INSTALLED_APPS = [*INSTALLED_APPS, "tests.probe"]
MIDDLEWARE = [*MIDDLEWARE, "tests.csp.strict_csp"]

# conftest.py names a file in a private folder. The tests' database is that file, not one in memory,
# so that a worker process and the test that started it see the same rows.
DATABASES["default"]["TEST"] = {"NAME": os.environ["EMQ_DB"]}
# A second one, for what depends on whose commit it is.
OTHER = f"{os.environ['EMQ_DB']}-other"
DATABASES["other"] = {**DATABASES["default"], "NAME": OTHER, "TEST": {"NAME": OTHER}}

# To run tests on another kind of database, which they make and delete:
# EMQ_DATABASE='{"ENGINE": "django.db.backends.mysql", "NAME": "emq_tests", …}' pytest tests/outbox
if "EMQ_DATABASE" in os.environ:
    one = json.loads(os.environ["EMQ_DATABASE"])
    names = {"default": one["NAME"], "other": f"{one['NAME']}_other"}
    DATABASES |= {a: {**one, "NAME": name, "TEST": {"NAME": name}} for a, name in names.items()}

# To run the suite under other options of the alias: EMQ_ALIAS='{"OPTIONS": {…}}' make test
CACHES["emq"] |= json.loads(os.environ.get("EMQ_ALIAS", "{}"))

# More settings of the queue, for a process that a test starts.
EMQ = {**EMQ, **json.loads(os.environ.get("EMQ_MORE", "{}"))}

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

# Django's tasks API. One attempt, as the suite for backends asks for.
TASKS = {
    "default": {
        "BACKEND": "django_emq.backend.EMQBackend",
        "OPTIONS": {"MAX_ATTEMPTS": 1},
    },
}
