"""What a job finds out about one Python file. No Django and no queue here."""

from __future__ import annotations

import ast
import gc
import io
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))
# Third-party packages live below the standard library, but are none of it.
FOREIGN = {"site-packages", "dist-packages", "__pycache__"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one file; the longest function is the first one of that length."""

    lines: int
    tokens: int
    functions: int
    classes: int
    longest: str = ""  # its name within the file, as in Class.method
    longest_lines: int = 0


def python_files(root: Path) -> list[str]:
    """All Python files below a folder, by their paths in it, sorted."""
    found = (path.relative_to(root) for path in root.rglob("*.py") if path.is_file())
    return sorted(path.as_posix() for path in found if FOREIGN.isdisjoint(path.parts))


def measure(path: Path) -> Figures:
    """Read, tokenise and parse a file; raises whatever Python says of a file it cannot read."""
    source = path.read_bytes()
    with warnings.catch_warnings(), collector_paused():
        # Some test files are full of invalid escapes: remarks on them are not our business.
        warnings.simplefilter("ignore")
        tokens = sum(1 for _ in tokenize.tokenize(io.BytesIO(source).readline))
        tree = ast.parse(source, path.name)
    functions = classes = longest_lines = 0
    longest = ""
    for name, node in definitions(tree):
        if isinstance(node, ast.ClassDef):
            classes += 1
            continue
        functions += 1
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if lines > longest_lines:
            longest, longest_lines = name, lines
    return Figures(len(source.splitlines()), tokens, functions, classes, longest, longest_lines)


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection in this block.

    A syntax tree is many thousand small objects without a cycle. Going through them again and
    again while they become more takes a third of the time that tokenising and parsing takes.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def definitions(
    tree: ast.AST,
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]]:
    """Functions and classes, nested ones too, in the order of the file, with their full names.

    Only blocks are entered, no expressions: that is most of a tree, and nothing is defined there.
    """
    todo = [("", tree)]
    while todo:
        prefix, node = todo.pop()
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            name = prefix + node.name
            yield name, node
            prefix = name + "."
        inner: list[ast.AST] = []
        for block in ("body", "handlers", "orelse", "finalbody", "cases"):
            inner += getattr(node, block, ())
        todo += [(prefix, child) for child in reversed(inner)]


def describe(error: BaseException) -> str:
    """An error in one line, as the morgue shows it."""
    name = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    return f"{name}: {error}"


def verdict(path: Path) -> Figures | str:
    """What a job on this file must come to: its figures, or the reason why there are none."""
    try:
        return measure(path)
    except Exception as error:
        return describe(error)
