"""Effects that happen once, and fenced writes: what one process sees of them."""

import contextvars
from contextlib import suppress
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.db import IntegrityError, transaction
from django.utils import timezone

import django_emq as emq
from django_emq import effects, scripts
from django_emq.context import JobContext, enter
from django_emq.jobs import Claimed
from django_emq.keys import queue_keys
from django_emq.models import Effect
from tests.conformance.wire import claims, enqueue_one, pass_ms
from tests.probe.models import Invoice

pytestmark = pytest.mark.django_db


def in_job(work, *, token=1, job_id=b"JOBa", fence=0):
    """Call `work` as a run of a job would."""
    job = JobContext(Claimed(job_id, b"", token, 0, "q", 0.0, fence), 15.0, lambda: 0.0)

    def run():
        enter(job)
        return work()

    return contextvars.copy_context().run(run)


def charge(name="charge", *, value="by the first", **options):
    """Make an invoice once; the value, and whether this call did it."""
    with emq.effect(name, **options) as once:
        if first := once.first:
            Invoice.objects.create(number=name)
            once.value = value
    return once.value, first


# -- effect -----------------------------------------------------------------------------------


def test_an_effect_happens_once_for_a_job():
    """The second run is not the first, and is given what the first one stored."""
    assert in_job(charge) == ("by the first", True)
    assert in_job(lambda: charge(value="again"), token=2) == ("by the first", False)
    assert Invoice.objects.count() == 1


def test_jobs_and_names_have_effects_of_their_own():
    """Ids that differ in upper and lower case are two, whatever the database compares."""
    for job_id, name in [(b"JOBa", "x"), (b"JOBA", "x"), (b"JOBa", "X"), (b"JOBa", "y")]:
        assert in_job(lambda name=name: charge(name), job_id=job_id)[1]
    assert Invoice.objects.count() == 4


def test_a_key_is_shared_by_all():
    """By several jobs, twice in one run, and outside of jobs."""
    assert in_job(lambda: charge(key="order:42"))[1]
    assert not in_job(lambda: charge(key="order:42"), job_id=b"JOBb")[1]
    assert not charge(key="order:42")[1]
    assert charge(key="order:43")[1]
    assert not in_job(lambda: (charge(key="order:43"), charge(key="order:43")))[1][1]
    assert Invoice.objects.count() == 2


def test_without_a_key_there_must_be_a_job():
    with pytest.raises(emq.NoCurrentJob, match="Give it a key="):
        charge()


@pytest.mark.parametrize("value", [None, 0, "", [], {"id": "ch_1", "list": [1.5, None, "\0é"]}])
def test_values_come_back_as_they_were(value):
    """Those that are false, too."""
    in_job(lambda: charge(value=value))
    assert in_job(charge, token=2) == (value, False)


def test_a_block_need_not_store_a_value():
    def run():
        with emq.effect("mail") as once:
            assert once.value is None
            return bool(once), once.value

    assert [in_job(run, token=token) for token in (1, 2)] == [(True, None), (False, None)]


def test_an_effect_that_fails_did_not_happen():
    """Its writes are rolled back with its record; what is around it can go on."""

    def fail():
        Invoice.objects.create(number="before")
        with emq.effect("charge") as once:
            assert once.first
            Invoice.objects.create(number="inside")
            with suppress(IntegrityError), transaction.atomic():
                Invoice.objects.create(pk=Invoice.objects.get(number="before").pk)
        with suppress(ZeroDivisionError), emq.effect("other") as once:
            assert once.first
            Invoice.objects.create(number="lost")
            _ = 1 / 0

    in_job(fail)
    assert {invoice.number for invoice in Invoice.objects.all()} == {"before", "inside"}
    assert [effect.name for effect in Effect.objects.all()] == ["charge"]


def test_a_block_that_does_not_look_is_refused():
    """It would do its work in every run. Nothing of it stays, not even in the first run."""

    def run():
        with emq.effect("charge"):
            Invoice.objects.create(number="a")

    for token in (1, 2):
        with pytest.raises(emq.EffectError, match=r"`if once.first:`. Nothing was written"):
            in_job(run, token=token)
    assert (Invoice.objects.count(), Effect.objects.count()) == (0, 0)


def test_as_a_decorator_it_is_refused():
    @emq.effect("charge", key="k")
    def run():
        Invoice.objects.create(number="a")

    with pytest.raises(emq.EffectError, match="without looking"):
        run()
    assert Invoice.objects.count() == 0


def test_a_loop_over_one_effect_is_refused():
    """The second round would be skipped, silently."""

    def run():
        for number in range(2):
            with emq.effect("line") as once:
                if once.first:
                    Invoice.objects.create(number=number)

    with pytest.raises(emq.EffectError, match="entered twice in one run.*name of its own"):
        in_job(run)


def test_a_rolled_back_effect_may_be_tried_again_in_the_same_run():
    def run():
        for _ in range(2):
            with transaction.atomic():
                last = charge()
                transaction.set_rollback(Invoice.objects.count() == 1 and not tried)
                tried.append(last)

    tried = []
    in_job(run)
    assert [first for _, first in tried] == [True, True]
    assert Invoice.objects.count() == 1


def test_a_value_that_would_be_lost_is_refused():
    """Of an effect that is recorded, and after the block."""

    def run():
        with emq.effect("charge") as once:
            if not once.first:
                once.value = 2
        once.value = 3

    with pytest.raises(emq.EffectError, match="its block is over"):
        in_job(run)
    assert in_job(lambda: charge("other"))[1]
    with pytest.raises(emq.EffectError, match="recorded by an earlier run"):
        in_job(run, token=2)


@pytest.mark.parametrize(
    ("value", "error"),
    [((1, 2), emq.InvalidArguments), (timezone.now(), emq.InvalidArguments)],
)
def test_a_value_must_survive_json(value, error):
    with pytest.raises(error, match="^once.value: "):
        in_job(lambda: charge(value=value))
    assert Invoice.objects.count() == 0


def test_a_value_has_a_size(settings):
    settings.EMQ = {**settings.EMQ, "MAX_PAYLOAD": 10}
    with pytest.raises(emq.PayloadTooLarge, match="has 11 bytes, MAX_PAYLOAD allows 10"):
        in_job(lambda: charge(value="x" * 9))


@pytest.mark.parametrize("options", [{"key": ""}, {"key": 42}, {"key": "x" * 256}, {"name": ""}])
def test_names_and_keys_are_texts(options):
    with pytest.raises(emq.InvalidOption, match="Give a text of 1 to"):
        in_job(lambda: charge(**{"name": "charge", **options}))


def test_a_transaction_that_cannot_see_the_first_run_is_refused(monkeypatch):
    """As under REPEATABLE READ: the key is taken, and who took it cannot be seen."""
    in_job(charge)
    unseen = Effect.objects.none()
    monkeypatch.setattr(Effect.objects, "using", lambda alias: unseen)
    with pytest.raises(emq.EffectError, match="began too early to see that"):
        in_job(charge, token=2)


# -- pruning ----------------------------------------------------------------------------------


def test_old_effects_are_pruned(monkeypatch, capsys):
    """In steps; what is younger stays."""
    monkeypatch.setattr(effects, "PRUNE_BATCH", 2)
    year = timedelta(days=365)
    for number, age in enumerate([0 * year, year * 0.99, year * 1.01, year * 2, year * 3]):
        charge(key=f"{number}")
        Effect.objects.filter(key=f"{number}").update(recorded_at=timezone.now() - age)
    assert effects.prune() == 2
    call_command("emq_prune")
    assert capsys.readouterr().out == "1 records of effects deleted.\n"
    assert {effect.key for effect in Effect.objects.all()} == {"0", "1"}
    call_command("emq_prune", "--older-than", str(364 * 86400 * 0.9))
    assert {effect.key for effect in Effect.objects.all()} == {"0"}


# -- the fence --------------------------------------------------------------------------------


def write(text, **where):
    return emq.fenced_update(Invoice.objects.filter(**where or {"number": "a"}), text=text)


def test_a_fenced_update_is_refused_to_an_older_claim():
    """Equal is the same claim, writing again."""
    Invoice.objects.create(number="a")
    assert in_job(lambda: write("one"), fence=7) == 1
    assert in_job(lambda: write("two"), fence=7, token=9) == 1
    assert in_job(lambda: write("three"), fence=8, job_id=b"JOBb") == 1
    with pytest.raises(emq.StaleToken, match="whose fence is 7"):
        in_job(lambda: write("four"), fence=7)
    assert Invoice.objects.values_list("text", "fence").get() == ("three", 8)


def test_without_a_fence_key_it_is_the_token():
    Invoice.objects.create(number="a")
    assert in_job(lambda: write("two"), token=2) == 1
    with pytest.raises(emq.StaleToken):
        in_job(lambda: write("one"), token=1)
    assert Invoice.objects.get().fence == 2


def test_a_fenced_update_writes_all_rows_or_none():
    Invoice.objects.create(number="a")
    Invoice.objects.create(number="b", fence=5)
    with pytest.raises(emq.StaleToken, match="Nothing was written"):
        in_job(lambda: write("late", number__in="ab"), token=4)
    assert set(Invoice.objects.values_list("text", "fence")) == {("", 0), ("", 5)}
    assert in_job(lambda: write("new", number__in="ab"), token=5) == 2


def test_no_row_is_no_refusal():
    assert in_job(lambda: write("x", number="none")) == 0


def test_a_fenced_update_goes_to_the_database_that_was_chosen():
    with pytest.raises(Exception, match="no_such"):
        in_job(lambda: emq.fenced_update(Invoice.objects.using("no_such"), text="x"))


def test_a_fenced_update_needs_a_job():
    with pytest.raises(emq.NoCurrentJob):
        write("x")


# -- numbers of resources ---------------------------------------------------------------------


def test_the_numbers_of_a_resource_grow_across_jobs(client, redis, queue):
    """In one claim and in the next ones; those of another resource are its own."""
    fields = [
        {"fence_key": "a", "ties": 1},
        {},
        {"fence_key": "a", "ties": 1},
        {"fence_key": "b", "ties": 1},
    ]
    for more in fields:
        enqueue_one(client, queue, **more)
    before = int(redis.time()[0]) * 1000
    one, none, two, other = (job.fence for job in claims(client, queue, 4).jobs)
    assert before <= one < two
    assert (none, other) == (0, one)
    enqueue_one(client, queue, fence_key="a", ties=1)
    assert claims(client, queue).jobs[0].fence > two
    assert 0 < redis.pttl(queue_keys(queue).fence("a")) <= 3_600_000


def test_the_number_grows_when_the_last_one_is_forgotten(client, redis, queue):
    """Its key has a time to live, and a server may lose its data: the clock goes on."""
    numbers = []
    for damage in (redis.delete, lambda key: redis.rpush(key, "x"), redis.delete):
        enqueue_one(client, queue, fence_key="a", ties=1)
        numbers.append(claims(client, queue).jobs[0].fence)
        redis.delete(queue_keys(queue).fence("a"))
        damage(queue_keys(queue).fence("a"))
        pass_ms(client, 2)
    assert numbers == sorted(set(numbers))


def test_a_clock_that_goes_back_does_not_lower_the_number(client, redis, queue):
    redis.set(queue_keys(queue).fence("a"), 4_000_000_000_000)
    enqueue_one(client, queue, fence_key="a", ties=1)
    assert claims(client, queue).jobs[0].fence == 4_000_000_000_001


def test_a_repeated_claim_has_the_same_numbers(client, queue):
    """Its answer was lost. A job that has been settled since is left out."""
    for more in (
        {"fence_key": "a", "ties": 1},
        {},
        {"fence_key": "b", "ties": 1},
        {"fence_key": "a", "ties": 1},
    ):
        enqueue_one(client, queue, **more)

    def claim():
        return scripts.claim(client, queue, worker="w", request=1, lease_ms=60_000, count=4).jobs

    first = claim()
    scripts.complete(client, queue, [(first[0].id, first[0].token, "")])
    assert [(job.id, job.fence) for job in claim()] == [(job.id, job.fence) for job in first[1:]]


def test_every_claim_of_a_job_raises_its_number(client, queue):
    enqueue_one(client, queue, fence_key="a", ties=1)
    (one,) = claims(client, queue).jobs
    scripts.release(client, queue, [(one.id, one.token)])
    assert claims(client, queue).jobs[0].fence > one.fence


def test_a_task_names_its_resource(client, queue):
    """By `using`, which goes before its own; the payload stays as it is."""
    fixed = emq.Task(print, "p", queue=queue, fence_key="stock")
    for task, key in [(fixed, b"stock"), (fixed.using(fence_key="invoice:42"), b"invoice:42")]:
        job = task.enqueue()
        row = client.raw.hgetall(queue_keys(queue).job(job.id))
        assert (row[b"fence_key"], row[b"payload"]) == (key, b'{"task":"p"}')


@pytest.mark.parametrize("key", ["", "x" * 201, 42, "a\nb", "\ud800"])
def test_a_bad_fence_key_is_refused(key):
    with pytest.raises(emq.InvalidOption, match="1 to 200 printable characters"):
        emq.Task(print, "p", fence_key=key)


# -- keys for others --------------------------------------------------------------------------


def test_an_idempotency_key_is_the_same_in_every_run():
    keys = {in_job(lambda: emq.idempotency_key("charge"), token=token) for token in (1, 2)}
    assert keys == {"JOBa:charge"}
    assert in_job(lambda: emq.idempotency_key("mail")) == "JOBa:mail"


@pytest.mark.parametrize("name", ["", "é", "a\nb", "x" * 101, None])
def test_an_idempotency_key_goes_into_a_header(name):
    with pytest.raises(emq.InvalidOption):
        in_job(lambda: emq.idempotency_key(name))
