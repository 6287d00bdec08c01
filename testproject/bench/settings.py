"""The test project's settings with another TRAIL, for what the trail costs."""

import os

from testproject.settings import *

globals()["EMQ"] = {**EMQ, "TRAIL": os.environ["BENCH_TRAIL"]}
