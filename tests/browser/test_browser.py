"""The pages in a real browser: what an operator does at a bad moment."""

import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from django_emq import inspector, scripts
from django_emq.admin import actions
from tests.admin.yard import TASK, admit, kill, payload, url
from tests.browser.pages import pages_of
from tests.browser.scene import play
from tests.probe.tasks import boom_until, nap_then_mark
from tests.processes import Worker, wait_until

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def tab(page, name):
    """The count on the tab of a set."""
    return page.locator(".emq-tabs").get_by_role("link", name=name).locator(".emq-count")


def test_watch_a_queue_drain(page, client, queue, probe):
    """Figures and rows refresh in place, without a reload, until all is done."""
    for n in range(12):
        nap_then_mark.using(queue=queue).enqueue(0.1, n)
    page.goto(url("queue_set", queue=queue, name="pending"))
    expect(tab(page, "Pending")).to_have_text("12")
    expect(page.get_by_text("No worker serves this queue.")).to_be_visible()
    page.evaluate("window.same = true")
    with Worker(queue) as worker:
        probe.wait_for(12)
        expect(tab(page, "Pending")).to_have_text("0")
        expect(page.get_by_text("No jobs here.")).to_be_visible()
        worker.terminate()
        worker.wait()
    assert page.evaluate("window.same")


def test_requeue_a_dead_job_and_see_it_done(page, client, queue, probe):
    """From the morgue to the worker: the page of the job tells of both its lives."""
    job = boom_until.using(queue=queue, max_attempts=1).enqueue(2, "x")
    with Worker(queue) as worker:
        wait_until(lambda: inspector.state(client, queue, job.id) == "dead")
        page.goto(url("morgue_changelist"))
        page.get_by_role("link", name="1", exact=True).click()
        page.get_by_role("link", name=job.id).first.click()
        expect(page.locator("h1")).to_contain_text("Dead")
        page.get_by_role("button", name="Requeue").click()
        expect(page.locator("h1")).to_have_text("Requeue: 1 job?")
        page.get_by_role("button", name="Requeue").click()
        expect(page.locator(".messagelist")).to_contain_text("1 job was requeued.")
        wait_until(lambda: inspector.state(client, queue, job.id) == "absent")
        page.reload()
        expect(page.get_by_text("It is no longer there")).to_be_visible()
        expect(page.locator(".emq-timeline")).to_contain_text("was given another life by anna")
        worker.terminate()
        worker.wait()
    assert probe.marks() == ["x", "x"]


def test_pause_and_resume(page, client, queue, probe):
    """While paused no worker takes a job; the page says who and why."""
    with Worker(queue) as worker:
        worker.wait_ready()
        scripts.register(client, [queue])
        page.goto(url("queue_change", queue=queue))
        page.get_by_label("Why it is paused").fill("the disk is full")
        page.get_by_role("button", name="Pause").click()
        expect(page.locator(".emq-note-warn")).to_contain_text("Paused by anna since")
        expect(page.locator(".emq-note-warn")).to_contain_text("the disk is full")
        nap_then_mark.using(queue=queue).enqueue(0, "y")
        page.reload()
        expect(tab(page, "Pending")).to_have_text("1")
        assert probe.marks() == []
        page.get_by_role("button", name="Resume").click()
        probe.wait_for(1)
        expect(tab(page, "Pending")).to_have_text("0")
        worker.terminate()
        worker.wait()


def test_a_long_action_goes_on_by_itself(page, client, queue, monkeypatch):
    """Several requests, one after the other, until the set is empty."""
    monkeypatch.setattr(actions, "SECONDS", 0.0)
    monkeypatch.setattr(actions, "BATCH", 40)
    kill(client, queue, [payload(TASK, n) for n in range(200)])
    page.goto(url("queue_set", queue=queue, name="dead"))
    page.get_by_label("all of this set").check()
    page.get_by_role("button", name="Remove").click()
    page.get_by_role("button", name="Remove").click()
    expect(page.locator(".messagelist")).to_contain_text("200 jobs were removed.")
    assert inspector.counts(client, queue)["dead"] == 0


def test_without_javascript(chromium, page, live_server, client, queue, monkeypatch):
    """The same by buttons alone."""
    monkeypatch.setattr(actions, "SECONDS", 0.0)
    monkeypatch.setattr(actions, "BATCH", 4)
    kill(client, queue, [payload(TASK, n) for n in range(10)])
    context = chromium.new_context(
        base_url=live_server.url,
        java_script_enabled=False,
        storage_state=page.context.storage_state(),
    )
    plain = context.new_page()
    plain.goto(url("queue_set", queue=queue, name="dead"))
    plain.get_by_label("all of this set").check()
    plain.get_by_role("button", name="Requeue").click()
    plain.get_by_role("button", name="Requeue").click()
    while plain.get_by_role("button", name="Continue").count():
        plain.get_by_role("button", name="Continue").click()
    expect(plain.locator(".messagelist")).to_contain_text("10 jobs were requeued.")
    context.close()
    assert inspector.counts(client, queue)["pending"] == 10


def test_a_refresh_leaves_ticked_rows_alone(page, client, queue):
    """Jobs that are about to be acted on do not move under the hand."""
    ids = kill(client, queue, [payload(TASK, n) for n in range(3)])
    page.goto(url("queue_set", queue=queue, name="dead"))
    page.get_by_label(f"Select {ids[0]}").check()
    kill(client, queue, [payload(TASK, "late")])
    expect(tab(page, "Dead")).to_have_text("4")
    assert page.locator("input[name=ids]").count() == 3
    expect(page.get_by_label(f"Select {ids[0]}")).to_be_checked()
    page.get_by_label("Select all on this page").check()
    assert page.locator("input[name=ids]:checked").count() == 3


def test_live_can_be_switched_off(page, client, queue):
    """The button says what it is, and stays as it was left."""
    admit(client, queue, [payload()])
    page.goto(url("queue_change", queue=queue))
    live = page.get_by_role("button", name="Live")
    expect(live).to_have_attribute("aria-pressed", "true")
    live.click()
    page.reload()
    expect(live).to_have_attribute("aria-pressed", "false")
    page.emulate_media(reduced_motion="reduce")
    page.evaluate("localStorage.clear()")
    page.reload()
    expect(live).to_have_attribute("aria-pressed", "false")


def test_times_count_down(page, client, queue):
    """Between two refreshes the seconds go on."""
    admit(client, queue, [payload()], due="+50000")
    page.goto(url("queue_set", queue=queue, name="schedule"))
    left = page.locator("td [data-emq-left]")
    expect(left).to_have_text(re.compile(r"^4[0-9] s$"))
    first = left.inner_text()
    expect(left).not_to_have_text(first)


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_every_page_is_accessible(page, client, scheme, width):
    """axe finds nothing serious or critical, and nothing is wider than the window."""
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.set_viewport_size({"width": width, "height": 800})
    axe, found = Axe(), []
    for name, visit in pages_of(play(client)).items():
        visit(page)
        for violation in axe.run(page).response["violations"]:
            if violation["impact"] in ("serious", "critical"):
                nodes = [node["html"][:150] for node in violation["nodes"][:3]]
                found.append((name, violation["id"], nodes))
        wide = page.evaluate("document.documentElement.scrollWidth")
        if wide > width:
            found.append((name, "too wide", wide))
    assert found == []
