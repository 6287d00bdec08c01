"""How to get to every page, for what is done on all of them."""

from collections.abc import Callable

from tests.admin.yard import url


def pages_of(job_id: str) -> dict[str, Callable[[object], None]]:
    """Name of a page to what opens it; the scene must have been played."""

    def at(*names, **kwargs):
        return lambda page: page.goto(url(*names, **kwargs))

    def confirm(page):
        page.goto(url("queue_set", queue="mail", name="dead"))
        page.check("input[name=scope][value=all]")
        page.click("#emq-jobs button[value=requeue]")

    def stop(page):
        page.goto(url("worker_changelist"))
        page.click("button[value=stop]")

    return {
        "queues": at("queue_changelist"),
        "queue-pending": at("queue_set", queue="mail", name="pending"),
        "queue-active": at("queue_set", queue="mail", name="active"),
        "queue-scheduled": at("queue_set", queue="mail", name="schedule"),
        "queue-dead": at("queue_set", queue="mail", name="dead"),
        "queue-done": at("queue_set", queue="images", name="done"),
        "queue-paused": at("queue_change", queue="reports"),
        "job": at("queue_job", queue="mail", job_id=job_id),
        "edit": at("queue_edit", queue="mail", job_id=job_id),
        "confirm": confirm,
        "morgue": at("morgue_changelist"),
        "workers": at("worker_changelist"),
        "workers-stop": stop,
        "server": at("server_changelist"),
        "schedules": at("schedule_changelist"),
    }
