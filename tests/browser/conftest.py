"""A real Chromium before a real server.

The browser's event loop runs in the main thread until its fixture ends, so it must not outlive
this package: other tests start loops of their own.
"""

import shutil
from collections.abc import Iterator

import pytest

from tests.admin.conftest import account, operator, yard

FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
]

PATIENCE = 30_000  # ms that something may take to appear on a busy machine

__all__ = ["account", "operator", "yard"]


@pytest.fixture(scope="package")
def chromium() -> Iterator[object]:
    """The browser itself. Django would take its event loop for that of an async view."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE)
    path = shutil.which("chromium")
    assert path, "Chromium is not here: apt-get install chromium fonts-dejavu-core"
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def faults() -> list[str]:
    """What the browser complained of: errors of scripts, of the console, of the policy."""
    return []


@pytest.fixture
def page(chromium, live_server, transactional_db, faults) -> Iterator[object]:
    """A tab in which the superuser 'anna' is signed in. No page may make the browser complain."""
    from django.contrib.auth.models import User

    User.objects.create_superuser("anna", password="pw")
    context = chromium.new_context(
        base_url=live_server.url, viewport={"width": 1280, "height": 800}
    )
    page = context.new_page()

    def listen(message) -> None:
        url = (message.location or {}).get("url", "")
        if message.type in ("error", "warning") and "favicon" not in url:
            faults.append(message.text)

    page.on("console", listen)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto("/admin/")
    page.fill("#id_username", "anna")
    page.fill("#id_password", "pw")
    page.click("input[type=submit]")
    yield page
    context.close()
    assert faults == []
