"""What a user gets from the package index: everything, and it runs outside the checkout."""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from private_server import Server

from tests.processes import ROOT

SETTINGS = """
import os
SECRET_KEY = "x"
INSTALLED_APPS = ["django_emq", "shop"]
CACHES = {"emq": {
    "BACKEND": "django_redis.cache.RedisCache", "LOCATION": os.environ["EMQ_URL"],
}}
"""

TASKS = """
from pathlib import Path
import django_emq as emq

@emq.task
def write(path, text):
    Path(path).write_text(text)
"""

INVENTORY = """
import importlib.resources, json, os
import django, redis
django.setup()
from django.core.management import get_commands
import django_emq
client = redis.Redis.from_url(os.environ["EMQ_URL"])
scripts = [p for p in importlib.resources.files("django_emq.lua").iterdir() if p.suffix == ".lua"]
print(json.dumps({
    "home": django_emq.__file__,
    "version": django_emq.__version__,
    "scripts": {p.name: client.script_load(p.read_text()) for p in scripts},
    "commands": [name for name, app in get_commands().items() if app == "django_emq"],
}))
"""

ENQUEUE = """
import sys, django
django.setup()
from shop.tasks import write
write.enqueue(sys.argv[1], "done")
"""


def sources() -> set[str]:
    """Every file of ours that belongs into a wheel, by its name there."""
    ours = [(ROOT / "django_emq", "django_emq"), (ROOT / "lua", "django_emq/lua")]
    return {
        f"{package}/{path.relative_to(folder)}"
        for folder, package in ours
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def outside(**more: str) -> dict[str, str]:
    """This environment without what leads back into the checkout."""
    ours = ("PYTHON", "DJANGO_", "COVERAGE_", "COV_")
    return {name: v for name, v in os.environ.items() if not name.startswith(ours)} | more


def run(*command: object, cwd: Path, **env: str) -> str:
    """The output of a command that must succeed."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=outside(**env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    """A folder with the sdist, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def python(dist, tmp_path_factory) -> Path:
    """The Python of a clean virtual environment into which the wheel was installed."""
    folder = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", folder, cwd=folder)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", next(dist.glob("*.whl")), cwd=folder)
    return python


@pytest.fixture
def project(tmp_path) -> Path:
    """A small Django project of somebody else's."""
    for name, text in (("settings", SETTINGS), ("shop/__init__", ""), ("shop/tasks", TASKS)):
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_the_wheel_holds_the_package_and_nothing_else(dist):
    """Every module, script, template and catalogue is in; tests and test project are not."""
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == sources()


def test_the_sdist_can_be_built_from(dist):
    """It has what the wheel is made of, where the repository has it."""
    with tarfile.open(next(dist.glob("*.tar.gz"))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    expected = {name.replace("django_emq/lua/", "lua/") for name in sources()}
    assert names >= expected | {"pyproject.toml", "README.md", "LICENSE"}
    assert not any(name.startswith("test") for name in names)


def test_a_job_runs_outside_the_checkout(python, project, server: Server):
    """Installed from the wheel, every script loads, every command is there, and a job is done."""
    env = {"EMQ_URL": server.url, "DJANGO_SETTINGS_MODULE": "settings"}

    found = json.loads(run(python, "-c", INVENTORY, cwd=project, **env))
    assert Path(found["home"]).is_relative_to(python.parent.parent)
    assert found["scripts"].keys() == {path.name for path in (ROOT / "lua").glob("*.lua")}
    commands = (ROOT / "django_emq" / "management" / "commands").glob("[!_]*.py")
    assert {"emq_worker"} < set(found["commands"]) == {path.stem for path in commands}

    run(python, "-c", ENQUEUE, project / "result", cwd=project, **env)
    run(python, "-m", "django", "emq_worker", "--burst", cwd=project, **env)
    assert (project / "result").read_text() == "done"
