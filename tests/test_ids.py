"""Job ids: form, order, uniqueness."""

import os
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from django_emq.ids import ALPHABET, is_job_id, mint, minted_at


def test_the_form():
    """JOB and 22 digits and letters."""
    for _ in range(1000):
        job_id = mint()
        assert len(job_id) == 25
        assert job_id.startswith("JOB")
        assert set(job_id[3:]) <= set(ALPHABET)
        assert is_job_id(job_id)


def test_what_is_no_job_id():
    """Nothing else passes: other kinds, lengths, signs, a line break at the end."""
    good = mint()
    for bad in (
        "", "JOB", good[:-1], good + "0", good + "\n", "FLW" + good[3:], good[:-1] + "-",
        good.lower(), " " + good,
    ):  # fmt: skip
        assert not is_job_id(bad)


def test_byte_order_is_mint_order():
    """Strictly rising within a process, also within a millisecond."""
    minted = [mint().encode() for _ in range(20_000)]
    assert all(one < two for one, two in pairwise(minted))


def test_order_holds_between_processes_over_milliseconds():
    """An id minted a few ms later elsewhere is greater."""
    one = mint()
    time.sleep(0.003)
    (other,) = forked(1)
    time.sleep(0.003)
    assert one < other < mint()


def test_threads_mint_no_id_twice():
    """Eight threads at once."""
    with ThreadPoolExecutor(8) as pool:
        lots = list(pool.map(lambda _: [mint() for _ in range(10_000)], range(8)))
    assert len({job_id for lot in lots for job_id in lot}) == 80_000
    for lot in lots:
        assert lot == sorted(lot)


def test_forked_children_mint_no_id_twice():
    """Children of one process that has minted before, all at once."""
    mine = [mint() for _ in range(1000)]
    lots = [forked(500) for _ in range(4)]
    mine += [mint() for _ in range(1000)]
    every = [*mine, *(job_id for lot in lots for job_id in lot)]
    assert len(set(every)) == len(every) == 4000


def test_siblings_forked_from_one_moment():
    """Four children with one parent's random state mint at the same time, and differ."""
    mint()
    gate, starter = os.pipe()
    lots = []
    for _ in range(4):
        reader, writer = os.pipe()
        if not os.fork():
            os.close(starter)
            os.read(gate, 1)  # the end of the pipe, for all of them at once
            with os.fdopen(writer, "wb") as file:
                pickle.dump([mint() for _ in range(5000)], file)
            os._exit(0)
        os.close(writer)
        lots.append(reader)
    os.close(gate)
    os.close(starter)
    minted = []
    for reader in lots:
        with os.fdopen(reader, "rb") as file:
            minted += pickle.load(file)
        os.wait()
    assert len(set(minted)) == len(minted) == 20_000


def test_minted_at_is_the_time_of_minting():
    """Within a millisecond, and with a time zone."""
    before = datetime.now(UTC)
    when = minted_at(mint())
    after = datetime.now(UTC)
    assert before - timedelta(milliseconds=1) <= when <= after


def test_minted_at_of_a_known_id():
    """The first 48 bits are milliseconds since 1970."""
    assert minted_at("JOB" + "0" * 22) == datetime(1970, 1, 1, tzinfo=UTC)
    number = (1_700_000_000_123 << 16) + 99
    digits = ""
    while number:
        number, digit = divmod(number, 62)
        digits = ALPHABET[digit] + digits
    job_id = "JOB" + digits.rjust(11, "0") + "0" * 11
    assert minted_at(job_id) == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)


def forked(count):
    """Ids minted by a child process."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reader)
        with os.fdopen(writer, "wb") as file:
            pickle.dump([mint() for _ in range(count)], file)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        minted = pickle.load(file)
    os.waitpid(pid, 0)
    return minted
