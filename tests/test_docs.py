"""What the pages claim: run where it can be run, compared with the code where it cannot."""

from __future__ import annotations

import ast
import builtins
import contextlib
import inspect
import itertools
import re
import subprocess
import sys
import types
from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest
from django.core.management import BaseCommand, find_commands, load_command_class

import django_emq as emq
from django_emq import chains, conf, exceptions, inspector, keys, registry, schedules, scripts
from django_emq.conformance.tasks import nothing
from django_emq.exceptions import InvalidArguments
from django_emq.ids import mint
from django_emq.jobs import encode
from django_emq.keys import queue_keys
from tests.conformance import wire
from tests.processes import ROOT, environment, wait_until

PACKAGE = ROOT / "django_emq"
LUA = [ROOT / "lua" / f"{name}.lua" for name in scripts.SCRIPTS]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted((ROOT / "docs").glob("*.md"))
README, REFERENCE = ROOT / "README.md", ROOT / "docs" / "reference.md"

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMANDS = find_commands(str(PACKAGE / "management"))
ANY = "|".join(COMMANDS)


class Block(NamedTuple):
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def first_line(self) -> str:
        return self.text.partition("\n")[0]


def blocks(*pages: Path) -> list[Block]:
    found = []
    for page in pages:
        text = page.read_text()
        for match in FENCE.finditer(text):
            line = text.count("\n", 0, match.start()) + 2
            found.append(Block(page, line, match[1], match[2]))
    return found


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return FENCE.sub("", page.read_text())


def slugs(page: Path) -> list[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: list[str] = []
    for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        same = sum(1 for other in found if re.fullmatch(re.escape(slug) + r"(-\d+)?", other))
        found.append(f"{slug}-{same}" if same else slug)
    return found


def section(page: Path, heading: str) -> str:
    """What stands under a heading, down to the next one of its level or above."""
    text = page.read_text()
    start = re.search(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
    assert start is not None, f"{page.name} has no section {heading!r}"
    end = re.search(rf"^#{{1,{len(start[1])}}} ", FENCE.sub(blank, text)[start.end() :], re.M)
    return text[start.end() :][: end.start() if end else None]


def blank(match: re.Match[str]) -> str:
    """As many characters, none of which begins a heading."""
    return re.sub("[^\n]", "x", match[0])


def rows(text: str) -> list[list[str]]:
    """The cells of all tables' lines, their headings left out."""
    lines = re.findall(r"^\|(.+)\|$", text, re.MULTILINE)
    table = [[cell.strip() for cell in line.split("|")] for line in lines]
    return [
        cells
        for cells, following in zip(table, [*table[1:], ["end"]], strict=True)
        if not set("".join(cells)) <= set("- ") and not set("".join(following)) <= set("-")
    ]


def names(text: str) -> set[str]:
    """Names in the first column of a section's tables."""
    return {name for cells in rows(text) for name in re.findall(r"`([^`]+)`", cells[0])}


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if "." in path.stem:  # `makemessages`, in a test beside this one, makes them of templates
            continue
        yield path, ast.parse(path.read_text())


def place(block: Block) -> str:
    return f"{block.page.name}:{block.line}"


# -- the pages as such ------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_internal_links_resolve(page: Path) -> None:
    """A link leads to a file of the repository, and to a heading of it."""
    for target in re.findall(r"\]\(([^)]+)\)", prose(page)):
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.is_file(), f"{page.name}: {target} leads to no file"
        if anchor:
            assert anchor in slugs(file), f"{page.name}: {target} leads to no heading"


def test_slugs_are_numbered_when_they_repeat() -> None:
    """Two headings of one name have two anchors: the links to `Task` depend on it."""
    assert {"task", "task-1", "current_job"} <= set(slugs(REFERENCE))


PYTHON = [block for block in blocks(*PAGES) if block.language == "python"]


@pytest.mark.parametrize("block", PYTHON, ids=place)
def test_python_blocks_compile(block: Block) -> None:
    """What is marked as Python is Python, or an entry of a dict."""
    entry = block.text.startswith('"')
    compile(f"{{{block.text}}}" if entry else block.text, place(block), "exec")


# Those of effects.md need tables and a job: tests/test_effects_docs.py. Those of tutorial.md are
# files of an example: tests/orders/test_tutorial.py.
RUNNABLE = [
    b
    for b in PYTHON
    if b.page.name not in ("README.md", "effects.md", "tutorial.md")
    and "import django_emq as emq" in b.text
]


@pytest.mark.parametrize("block", RUNNABLE, ids=place)
def test_self_contained_blocks_run(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that imports what it needs runs, and its assertions hold."""
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))
    monkeypatch.setattr(schedules, "_decorated", {})
    module = types.ModuleType(f"docs_{block.line}")
    exec(compile(block.text, place(block), "exec"), module.__dict__)


def test_named_targets_of_make_exist() -> None:
    """`make something` in a page is a target of the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"(?:`|^    )make ([a-z-]+)", page.read_text(), re.MULTILINE))
        assert named <= targets, page.name


# -- the quickstart ---------------------------------------------------------------------------


@contextlib.contextmanager
def running(command: list[str], folder: Path, env: dict[str, str]) -> Iterator[subprocess.Popen]:
    """A process for this block; its output is in the file `output` of the folder."""
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=env, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)


MAILS_TO_FILES = """
import django
if django.VERSION >= (6, 1):
    MAILERS = {
        "default": {
            "BACKEND": "django.core.mail.backends.filebased.EmailBackend",
            "OPTIONS": {"file_path": BASE_DIR / "mails"},
        }
    }
else:
    EMAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
    EMAIL_FILE_PATH = BASE_DIR / "mails"
"""


def test_the_quickstart_works(tmp_path: Path, server) -> None:
    """Its blocks, put into a new project as they stand, end with a mail that was sent."""
    found = [b for b in blocks(README) if b.language in ("python", "sh")]
    settings, tasks, view = (b.text for b in found if b.language == "python")
    install, start = (b.text.strip() for b in found if b.language == "sh")
    assert [b.first_line.split(",")[0] for b in found if b.language == "python"] == [
        "# settings.py",
        "# shop/tasks.py",
        "# in a view",
    ]
    assert install.startswith('pip install "django-emq[')
    project = (ROOT / "pyproject.toml").read_text()
    assert 'name = "django-emq"' in project
    assert install.rstrip('"]').rpartition("[")[2] + " = [" in project

    env = environment(DJANGO_SETTINGS_MODULE="mysite.settings")

    def django(*args: str) -> None:
        done = subprocess.run(
            [sys.executable, *args], cwd=tmp_path, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr

    django("-m", "django", "startproject", "mysite", ".")
    django("manage.py", "startapp", "shop")
    url = "redis://127.0.0.1:6379/1"
    assert url in settings
    with (tmp_path / "mysite" / "settings.py").open("a") as file:
        file.write(f"\n{settings.replace(url, server.url)}\n")
        file.write('INSTALLED_APPS += ["shop"]\n')
        file.write(MAILS_TO_FILES)
    (tmp_path / "shop" / "tasks.py").write_text(tasks)
    (tmp_path / "mails").mkdir()
    django("manage.py", "check", "--tag", "emq", "--fail-level", "INFO")
    django("manage.py", "shell", "-c", view)

    assert start.split()[0] == "python"
    with running([sys.executable, *start.split()[1:]], tmp_path, env) as worker:
        mails = tmp_path / "mails"
        wait_until(
            lambda: any("Receipt 42" in mail.read_text() for mail in mails.iterdir()),
            what="a mail by the worker",
        )
        worker.terminate()
        assert worker.wait(30) == 0, (tmp_path / "output").read_text()
    assert "worker" in (tmp_path / "output").read_text()


# -- the reference ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", emq.__all__)
def test_public_names_have_a_section(name: str) -> None:
    """With each parameter of what can be called."""
    text = section(REFERENCE, name)
    value = getattr(emq, name)
    if name in ("task", "Task"):  # the next test has their options
        return
    if name == "FencedModel":  # abstract: its fields are those of whoever derives from it
        return
    if inspect.isclass(value) and issubclass(value, emq.EmqError):
        return
    if name in ("Job", "JobContext"):  # people read these and never make one
        public = {n for n in dir(value) if not n.startswith("_")} - {
            "claimed",
            "after",
            "error",
            "passes",
        }
        assert public <= names(text)
        return
    for parameter in inspect.signature(value).parameters:
        assert re.search(rf"\b{parameter}\b", text), f"{name}: {parameter} is missing"


def test_options_of_tasks_are_all_there() -> None:
    """The tables of `@task` and `using` have the options that the code takes."""
    assert names(section(REFERENCE, "task")) == {"name", *registry.DECORATOR}
    assert {"run_in", "run_at"} <= names(section(REFERENCE, "Task"))
    listed = re.search(r"Options of `using`: (.*?)\. The", section(REFERENCE, "Task"), re.DOTALL)
    assert listed is not None
    assert tuple(re.findall(r"`(\w+)`", listed[1])) == registry.USING


def test_the_tree_of_exceptions_is_that_of_the_code() -> None:
    """Each name of the tree derives from the one that it stands under, and none is left out."""
    (tree,) = (b for b in blocks(REFERENCE) if b.text.startswith("Exception\n"))
    above: list[type] = []
    seen = set()
    for line in tree.text.splitlines():
        depth, name = (len(line) - len(line.lstrip())) // 2, line.split()[0]
        cls = getattr(exceptions, name, None) or getattr(builtins, name)
        del above[depth:]
        if above:
            assert above[-1] in cls.__bases__, line
        also = re.search(r"an? (\w+Error) too", line)
        assert also is None or also[1] in {base.__name__ for base in cls.__bases__}, line
        above.append(cls)
        seen.add(name)
    ours = {n for n, v in vars(exceptions).items() if inspect.isclass(v)}
    ours = {n for n in ours if getattr(exceptions, n).__module__ == exceptions.__name__}
    assert ours - seen == {"Retry", "Snooze", "Discard", "Bury"}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_are_there_with_every_option(name: str) -> None:
    """The help that a command prints is the help in the reference."""
    command = load_command_class("django_emq", name)
    base = BaseCommand.create_parser(BaseCommand(), "manage.py", name)
    ordinary = {option for action in base._actions for option in action.option_strings}
    parser: ArgumentParser = command.create_parser("manage.py", name)
    text = " ".join(section(REFERENCE, name).split())
    assert " ".join(command.help.split()) in text
    for action in parser._actions:
        if not ordinary & {*action.option_strings}:
            usage = parser._get_formatter()
            usage.add_argument(action)
            assert " ".join(usage.format_help().split()) in text


def test_options_in_examples_exist() -> None:
    """A command line in any page has options that the command takes."""
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        for line in re.findall(rf"^.*\b(?:{ANY})\b.*$", text, re.MULTILINE):
            called = re.findall(rf"({ANY})((?: [\w./-]+)+)", line)
            for name, rest in called:
                parser = load_command_class("django_emq", name).create_parser("manage.py", name)
                known = {option for action in parser._actions for option in action.option_strings}
                assert set(re.findall(r" (--[a-z-]+)", rest)) <= known, line


class Order:
    """Looks like a row of a model."""

    _meta = pk = None


Order.__module__ = "shop.models"


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [([], {"when": datetime(2026, 1, 1)}), ([Order()], {}), ([[1, 2, float("nan")]], {})],
)
def test_refusals_of_arguments_read_as_shown(args, kwargs) -> None:
    """The sentences in the reference are the ones that are raised."""
    with pytest.raises(InvalidArguments) as caught:
        encode("task", args, kwargs, limit=1000)
    assert str(caught.value) in section(REFERENCE, "Enqueueing").splitlines()


def test_fields_of_rows_are_all_there(client, queue: str, settings) -> None:
    """Those of a job that has been through everything, and no other."""

    settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": []}}
    options = {"max_attempts": 9, "max_stalls": 9, "lease": 60, "expires": 60}
    past = datetime(2026, 1, 1, tzinfo=UTC)
    job = nothing.using(queue_name=queue, priority=1, run_after=past, **options).enqueue()
    next_one = chains.packed([chains.packed(["", mint(), "{}", 0, ""])])
    links = {"on_success": next_one, "on_failure": next_one, "after": "JOB0", "ties": 1}
    further = {"fence_key": "x", "dead_ms": 1, "planned_at": 1, "schedule": "x"}
    unique = ("unique", "unique_since", "behind", "due", "heir", "duplicates")
    further |= dict.fromkeys(unique, "x")
    client.raw.hset(queue_keys(queue).job(job.id), mapping=further | links)
    scripts.wait(client, queue, job.id, "one")

    requests = itertools.count()

    def claim() -> int:
        (claimed,) = scripts.claim(
            client, queue, worker="w", request=next(requests), lease_ms=1000
        ).jobs
        return claimed.token

    scripts.extend(client, queue, [(job.id, claim())], lease_ms=0)
    scripts.reap(client, queue, max_stalls=9)
    scripts.retry(client, queue, [(job.id, claim(), 0, "error", "trace")], max_attempts=9)
    token = claim()
    wire.progress(client, queue, job.id, token, "half")
    wire.log(client, queue, job.id, token, "a line")
    before = inspector.row(client, queue, job.id)  # with those who wait for its end
    scripts.complete(client, queue, [(job.id, token, "5")], keep_ms=60_000)
    row = inspector.row(client, queue, job.id)
    assert row["state"] == "done"
    assert before.keys() | row.keys() == names(section(REFERENCE, "Row fields"))


def test_counters_are_all_there() -> None:
    """Each name that a script counts under, and no other."""
    counted = {name for path in LUA for name in re.findall(r"tally\('(\w+)'", path.read_text())}
    assert names(section(REFERENCE, "Counters")) == counted


def test_the_trail_is_all_there() -> None:
    """Each event and each field that a script writes there, and no other."""
    written = "".join(path.read_text() for path in LUA)
    events = set(re.findall(r"(?:note\(|'event', )'(\w+)'", written))
    text = section(REFERENCE, "The trail")
    listed = re.search(r"^\| Event .*?\n\n", text, re.MULTILINE | re.DOTALL)
    assert listed is not None
    assert names(listed[0]) == events
    calls = re.findall(r"'XADD'.*?\*',\s*(.*?)\)\n", written, re.DOTALL)
    assert len(calls) > 10
    spelled = {field for call in calls for field in re.findall(r"'(\w+)',", call)} - events
    assert names(text) - events == spelled


LEVELS = {"debug", "info", "warning", "error", "critical", "exception"}


def log_formats() -> Iterator[tuple[str, str]]:
    """Where and with which format the package logs: calls of `logger` and `self._logger`."""
    for path, tree in trees():
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in LEVELS
                and ast.unparse(node.func.value) in ("logger", "self._logger")
                and isinstance(node.args[0], ast.Constant)
            ):
                yield f"{path.name}:{node.lineno}", node.args[0].value


def test_log_lines_are_all_there() -> None:
    """Each line that the package can log is in the table, with something in its gaps."""
    table = section(REFERENCE, "Log lines")
    formats = list(log_formats())
    assert len(formats) > 20
    for where, line in formats:
        parts = re.split(r"%[\d.]*[a-z]", line)
        pattern = "[^`\n]+?".join(re.escape(part) for part in parts)
        assert re.search(f"`[^`\n]*?{pattern}", table), f"{where}: {line}"


# -- README and how it works ------------------------------------------------------------------


def test_settings_in_the_readme_are_those_of_the_code() -> None:
    """Names in the order of the code, defaults as they are."""
    table = rows(section(README, "Settings"))
    assert tuple(cells[0].strip("`") for cells in table) == conf.NAMES
    defaults = {field.name.upper(): field.default for field in fields(conf.Settings)}
    for name, default, _ in table:
        value = ast.literal_eval(default.strip("`"))
        if name not in (
            "`BACKOFF`",
            "`SCHEDULES`",
            "`QUEUES`",
        ):  # a policy and a mapping: shown as one sets them
            assert value == defaults[name.strip("`")], name


def test_commands_in_the_readme() -> None:
    """All of them."""
    named = set(re.findall(r"manage\.py (emq_\w+)", section(README, "Commands")))
    assert named == set(COMMANDS)


def test_scripts_are_all_explained() -> None:
    """Each file of lua/ that a verb runs has its line, and no line is about another one."""
    text = section(ROOT / "docs" / "how-it-works.md", "The scripts")
    assert names(text) == {path.stem for path in LUA}


def test_keys_are_all_explained() -> None:
    """Each key of a queue and of the deployment is in a table."""
    listed = names(section(ROOT / "docs" / "how-it-works.md", "The keys"))
    queue, reserve = keys.queue_keys("q"), keys.reserve_keys()
    spelled = {getattr(queue, f.name).removeprefix(queue.base) for f in fields(queue)}
    spelled -= {"q", "", "job:", "fence:", "unique:"}
    spelled |= {"job:<id>", "fence:<key>", "unique:<digest>", "metrics:<minute>"}
    spelled |= {"sent:<producer>", "claims:<worker>"}
    spelled |= {queue.logs("<id>").removeprefix(queue.base), "repeat:<name>"}
    spelled |= {queue.waiter("<name>").removeprefix(queue.base)}
    spelled |= {reserve.version, reserve.queues, reserve.workers, reserve.worker("<id>")}
    spelled |= {reserve.word("<id>")}
    assert listed == spelled


# -- docstrings -------------------------------------------------------------------------------


def public(body: list[ast.stmt], owner: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Public functions and classes, and the public methods of these."""
    for node in body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        overload = any(getattr(d, "id", "") == "overload" for d in node.decorator_list)
        if node.name.startswith("_") or overload:
            continue
        yield f"{owner}{node.name}", node
        if isinstance(node, ast.ClassDef):
            yield from public(node.body, f"{node.name}.")


# What Django says of its own hooks needs no repeating.
DJANGO = {"Command", "Command.add_arguments", "Command.handle", "EmqConfig", "EmqConfig.ready"}
DJANGO_METHODS = {"Meta", "get_queryset", "get_urls"}
DJANGO_METHODS |= {f"has_{name}_permission" for name in ("add", "change", "delete", "view")}


def test_public_things_have_a_docstring() -> None:
    """Modules, classes, functions and methods that have no leading underscore."""
    bare = []
    for path, tree in trees():
        if path.parent.name == "migrations":
            continue
        if tree.body and not ast.get_docstring(tree):
            bare.append(str(path.relative_to(ROOT)))
        for name, node in public(tree.body):
            ours = name not in DJANGO and name.rpartition(".")[2] not in DJANGO_METHODS
            if ours and not ast.get_docstring(node):
                bare.append(f"{path.relative_to(ROOT)}: {name}")
    assert bare == []
