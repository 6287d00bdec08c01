"""The tests' settings with what VARIANT, a JSON object, puts in their place."""

import json
import os

import tests.settings

globals().update({name: value for name, value in vars(tests.settings).items() if name.isupper()})
globals().update(json.loads(os.environ.get("VARIANT", "{}")))


def variant(**settings):
    """The environment of a process that has these settings; for `processes.Worker`."""
    return {"DJANGO_SETTINGS_MODULE": "tests.variant", "VARIANT": json.dumps(settings)}
