"""The demo, with real workers and a real kill; what it finds wrong; and what it leaves behind."""

import ast
import http.cookiejar
import json
import re
import signal
import socket
import sqlite3
import urllib.parse
import urllib.request
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from library.measure import Figures, measure, verdict
from library.report import Kill, Report

from tests.processes import Worker, manage, wait_until

GOOD = [f"good/f{number:02}.py" for number in range(40)]
BAD = {
    "bad/syntax.py": b"def f(:\n",
    "bad/bytes.py": b"name = '\xff'\n",
    "bad/encoding.py": b"# coding: uft-8\n",
}

SOURCE = '''"""A file with one of everything."""
import warnings

class Outer:
    def short(self): pass

    async def long(self):
        if self:
            def inner():
                return 1
        return "\\d"
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files that take a while each, one that Python warns of, and some that it cannot read."""
    folder = tmp_path / "files"
    for name in ("good", "bad"):
        (folder / name).mkdir(parents=True)
    text = 2 * Path(ast.__file__).read_text()
    for path in GOOD:
        (folder / path).write_text(text)
    (folder / GOOD[0]).write_text(SOURCE)
    for path, content in BAD.items():
        (folder / path).write_bytes(content)
    return folder


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A database and a folder for temporary files that nothing else uses."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    return {"EMQ_DB": str(tmp_path / "demo.sqlite3"), "TMPDIR": str(temporary)}


def processes(env: dict[str, str]) -> list[str]:
    """Command lines of all living processes that use this database."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"EMQ_DB={env['EMQ_DB']}".encode() in (path / "environ").read_bytes().split(b"\0"):
                found.append((path / "cmdline").read_text().replace("\0", " "))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            pass
    return found


def query(env: dict[str, str], sql: str) -> list[tuple]:
    with closing(sqlite3.connect(env["EMQ_DB"])) as database, database:
        return database.execute(sql).fetchall()


def test_the_demo_runs_all_files_and_loses_none(folder, env, tmp_path, client):
    """A worker dies in the middle of a job; every file ends where the same parse says.

    There is one row a file and one for each run; no process, log or waiting job stays.
    """
    json_file = tmp_path / "figures.json"

    done = manage("demo", str(folder), "--json", str(json_file), seconds=100, **env)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""  # no warning of the parser, no error of a worker
    assert re.search(r"^half-way: SIGKILL to worker demo-[12] ", done.stdout, re.MULTILINE)
    last = done.stdout.splitlines()[-1]
    assert last.startswith("demo: 43 files, 40 done, 3 in the morgue (3 expected), ")
    figures = json.loads(json_file.read_text())
    assert figures["ok"]
    assert figures["morgue"] == {path: verdict(folder / path) for path in BAD}
    assert figures["cut_off"]
    assert set(figures["cut_off"]) <= set(figures["repeated"]) <= set(figures["held"])
    assert figures["reaped"] >= len(figures["cut_off"])
    assert figures["wrong"] == figures["lost"] == figures["written_twice"] == []

    rows = query(env, "select path, lines, functions, classes, longest from library_sourcefile")
    assert sorted(path for path, *_ in rows) == GOOD
    assert (GOOD[0], 11, 3, 1, "Outer.long") in rows
    runs = query(env, "select job, count(*), sum(outcome = 'open') from library_run group by job")
    assert len(runs) == len(GOOD) + len(BAD)
    cut_off = [count for _, count, never_ended in runs if never_ended]
    assert cut_off
    assert min(cut_off) >= 2
    assert processes(env) == []
    assert list(Path(env["TMPDIR"]).iterdir()) == []
    keys = {key.decode() for key in client.raw.scan_iter("emq:{library}:*")}
    jobs = {key for key in keys if ":job:" in key}
    assert client.raw.zcard("emq:{library}:dead") == len(jobs) == len(BAD)
    assert not keys & {f"emq:{{library}}:{name}" for name in ("pending", "active", "schedule")}


def test_a_wrong_figure_is_an_exit_status(folder, env, tmp_path):
    """Rows that vanish, change or were there before are found by file, and the demo fails."""
    assert manage("migrate", "-v0", **env).returncode == 0
    for name, event, then in (
        (GOOD[7], "library_sourcefile", "delete from library_sourcefile where id = new.id"),
        (
            GOOD[8],
            "library_sourcefile",
            "update library_sourcefile set lines = 1 where id = new.id",
        ),
        # As if another run had written its result in the meantime.
        (
            GOOD[9],
            "library_run",
            "insert or ignore into library_sourcefile (path, lines, tokens, functions, classes, "
            "longest, longest_lines, job, token) values (new.path, 1, 1, 1, 1, '', 0, 'x', 1)",
        ),
    ):
        trigger = f"t{name[-5:-3]} after insert on {event} when new.path = '{name}'"
        query(env, f"create trigger {trigger} begin {then}; end")
    json_file = tmp_path / "figures.json"

    done = manage("demo", str(folder), "--json", str(json_file), seconds=100, **env)

    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith("demo: WRONG: 43 files, 39 done, ")
    figures = json.loads(json_file.read_text())
    assert not figures["ok"]
    assert figures["lost"] == [GOOD[7]]
    assert figures["different"] == [GOOD[8], GOOD[9]]
    assert figures["results_found_there"] >= 1
    assert len(figures["wrong"]) == 3
    assert all(sentence in done.stdout for sentence in figures["wrong"])
    assert "The logs of the workers are in " in done.stdout
    assert processes(env) == []


def test_control_c_stops_everything(folder, env):
    """Nothing is left behind, and the last line says so."""
    with Worker(str(folder), command="demo", **env) as demo:
        demo.wait_for("half-way: ", seconds=60)
        demo.signal(signal.SIGINT)
        assert demo.wait(60) == 130, demo.output
        assert demo.lines[-1] == "demo: stopped; all that it started has ended\n"
    assert processes(env) == []
    assert list(Path(env["TMPDIR"]).iterdir()) == []


def test_workers_do_not_outlive_a_demo_that_is_killed(folder, env):
    """SIGKILL gives it no chance to end them: they end by themselves."""
    with Worker(str(folder), command="demo", **env) as demo:
        demo.wait_for("half-way: ", seconds=60)
        demo.kill()
        demo.wait()
        wait_until(lambda: processes(env) == [], what="the end of its workers")


def test_a_queue_in_use_is_left_alone(folder, env, client):
    """The demo says what to do, and touches nothing."""
    from library.tasks import measure_file

    job = measure_file.enqueue(str(folder), GOOD[0])

    done = manage("demo", str(folder), **env)

    assert done.returncode == 1
    assert "Queue 'library' of this server holds jobs." in done.stderr
    assert client.raw.zrange("emq:{library}:pending", 0, -1) == [job.id.encode()]


def test_measure(tmp_path):
    """Nested definitions count, decorators and methods have full names, all lines are counted."""
    path = tmp_path / "x.py"
    path.write_text(SOURCE)
    found = measure(path)
    assert replace(found, tokens=0) == Figures(11, 0, 3, 1, "Outer.long", 5)
    assert found.tokens > 30


# -- the report -------------------------------------------------------------------------------

FIGURES = Figures(lines=1, tokens=2, functions=0, classes=0)
REPORT = Report(
    expected={"a": FIGURES, "b": FIGURES, "c": "SyntaxError: x"},
    results={"a": FIGURES, "b": FIGURES},
    morgue={"c": "SyntaxError: x"},
    writes={"a": 1, "b": 1},
    kill=Kill("demo-1", 1, frozenset({"JOBa", "JOBb"}), frozenset({"JOBa"})),
    repeated=frozenset({"JOBa"}),
    refused=0,
    reaped=2,
    seconds=1.0,
)


def test_a_right_report():
    """Nothing to complain of."""
    assert REPORT.ok
    assert REPORT.wrong == []
    assert all(line.ok for line in REPORT.lines())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"results": {"a": FIGURES}}, "lost: b"),
        ({"results": {"a": FIGURES, "b": replace(FIGURES, lines=2)}}, "differ"),
        ({"morgue": {}}, "lost: c"),
        ({"morgue": {"c": "SyntaxError: y"}}, "another reason: c"),
        ({"morgue": {"c": "SyntaxError: x", "a": "OSError"}}, "another reason: a"),
        ({"writes": {"a": 2, "b": 1}}, "written twice: a"),
        ({"kill": None}, "No worker was killed"),
        ({"repeated": frozenset()}, "never run again: JOBa"),
    ],
)
def test_a_wrong_report(change, words):
    """Each figure that can be wrong is found, named and shown."""
    report = replace(REPORT, **change)
    assert not report.ok
    assert any(words in sentence for sentence in report.wrong)
    assert not all(line.ok for line in report.lines())
    assert report.summary().startswith("demo: WRONG: ")


# -- the admin --------------------------------------------------------------------------------


@pytest.mark.django_db
def test_the_admin_lists_and_finds(admin_client):
    """The lists show what the jobs wrote; nothing can be added, changed or deleted there."""
    from library.models import Run, SourceFile

    figures = {"lines": 7, "tokens": 9, "functions": 1, "classes": 0, "longest_lines": 2}
    for path in ("json/decoder.py", "ast.py"):
        row = SourceFile.objects.create(path=path, job="JOBx", token=1, **figures)
        Run.objects.create(path=path, job=f"JOB{path}", token=1, pid=1)

    for name in ("sourcefile", "run"):
        page = admin_client.get(f"/admin/library/{name}/?q=decoder").content.decode()
        assert "json/decoder.py" in page
        assert "ast.py" not in page
    page = admin_client.get("/admin/library/sourcefile/?folder=json").content.decode()
    assert "json/decoder.py" in page
    assert "ast.py" not in page
    assert admin_client.get(f"/admin/library/sourcefile/{row.pk}/change/").status_code == 200
    assert admin_client.get("/admin/library/sourcefile/add/").status_code == 403


def test_serve_prints_a_user_who_can_log_in(env):
    """The address, the name and the password that are printed are true."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    jar = http.cookiejar.CookieJar()
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
    with Worker("--port", str(port), command="serve", **env) as serve:
        url = serve.wait_for("http://").strip()
        user = serve.wait_for("user ")
        name, password = re.match(r"user (\w+), password (\w+);", user).groups()
        wait_until(lambda: answers(port), what="an answer on the port")
        browser.open(url).close()
        token = next(cookie.value for cookie in jar if cookie.name == "csrftoken")
        form = {"username": name, "password": password, "csrfmiddlewaretoken": token}
        body = urllib.parse.urlencode(form).encode()
        with browser.open(f"{url}login/?next=/admin/", body) as page:
            text = page.read().decode()
    assert "Source files" in text
    assert "Runs" in text
    assert "Orders" in text


def answers(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0
