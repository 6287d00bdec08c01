"""Each Lua file stands alone, so some functions stand in several: they must not drift apart."""

import re
from pathlib import Path

LUA = Path(__file__).parent.parent / "lua"
FUNCTION = re.compile(r"^local function (\w+\(.*?\))$(.*?)^end$", re.MULTILINE | re.DOTALL)


def test_functions_with_one_head_are_the_same():
    """Name and parameters: who mends one of them mends all."""
    bodies: dict[str, dict[str, list[str]]] = {}
    for path in sorted(LUA.glob("*.lua")):
        for head, body in FUNCTION.findall(path.read_text()):
            bodies.setdefault(head, {}).setdefault(body, []).append(path.name)
    assert len(bodies) > 20
    assert {head: list(files.values()) for head, files in bodies.items() if len(files) > 1} == {}
