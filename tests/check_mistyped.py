"""Has mypy look at `mistyped.py`, and compares what it says with what stands there.

python -m tests.check_mistyped
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from mypy import api

SAMPLE = Path(__file__).with_name("mistyped.py")


def expected() -> set[tuple[int, str]]:
    """Lines and codes, as the sample says."""
    lines = enumerate(SAMPLE.read_text().splitlines(), 1)
    return {
        (number, found[1]) for number, line in lines if (found := re.search(r"# ([\w-]+)$", line))
    }


def main() -> int:
    """0 when mypy refuses just what the sample says."""
    told, errors, _ = api.run([str(SAMPLE)])
    found = re.findall(r"^\S+?:(\d+): error: .*\[([\w-]+)\]$", told, re.MULTILINE)
    wrong = expected() ^ {(int(line), code) for line, code in found}
    if wrong or errors:
        print(f"{SAMPLE.name}: not as it says, at {sorted(wrong)}\n{told}{errors}")
    return 1 if wrong or errors else 0


if __name__ == "__main__":
    sys.exit(main())
