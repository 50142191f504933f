# SPDX-License-Identifier: Apache-2.0
"""Sessions over RDMA, on soft RoCE in a guest: programs, forks, deaths, and networks that go away.

`make test-rdma`. The tests run in this order: the last ones take the device away.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import sys

import pytest

from .calls import PAUSES
from .conftest import CHECKOUT, NATIVE, WAY, RdmaGuest

sys.path.insert(0, str(CHECKOUT / "dev"))
from measurements import Run, write_measured

pytestmark = [pytest.mark.rdma, pytest.mark.slow]

BY_RDMA = "the session goes over RDMA, by rxe0 port 1"
GOES_ON = "the session goes on over another connection"
#: Unit, what is wanted of the floor if anything is, and what that is.
FIGURES: dict[str, tuple[str, float | None, str]] = {
    "sync_call_rdma_us": ("us", 1.5, "bare ping-pong of RC writes"),
    "copy_rdma_gib_s": ("GiB/s", 0.85, "bare pipelined RC writes"),
    "copy_rdma_other_gib_s": ("GiB/s", None, "bare pipelined RC writes"),
}
COMES_BACK = "the session goes over RDMA again"


def test_a_connection_carries_bytes_and_a_hostile_peer_reaches_its_own_session(
    bare_guest: RdmaGuest,
) -> None:
    """While the server starts: it needs none."""
    out = bare_guest.guest.check(str(NATIVE / "bin" / "rdma_test"), 200)
    assert "[  PASSED  ]" in out
    assert "SKIPPED" not in out, out


def test_the_kernels_tls_is_held_against_ours(bare_guest: RdmaGuest) -> None:
    """What machines like this one's host may lack: here is a kernel of its own."""
    bare_guest.guest.check("modprobe -a tls gcm ctr aes_generic ghash_generic")
    tests = "*OfTheKernelAreTheSame*:*OfTheKernelCarry*"
    out = bare_guest.guest.check(f"{NATIVE / 'bin' / 'tls_test'} --gtest_filter='{tests}'", 100)
    assert "[  PASSED  ] 4 tests" in out, out


def test_the_server_says_which_port_it_uses(guest: RdmaGuest) -> None:
    log = guest.server_log()
    assert "RDMA: rxe0 port 1, RoCE v2, GID 1 ::ffff:a09:1, MTU 4096 bytes" in log
    assert "the node's label rdma is 10.9.0.0/24" in log


def test_every_program_that_a_network_carries(guest: RdmaGuest) -> None:
    lines = [json.loads(line) for line in guest.python("run_programs.py").splitlines()]
    assert len(lines) > 25
    assert [line for line in lines if line["problem"]] == []
    slow = sorted(lines, key=lambda line: -line["seconds"])[:3]
    print("slowest:", ", ".join(f"{line['name']} {line['seconds']} s" for line in slow))
    assert re.search(r"started: graphs .* over rdma", guest.server_log())


def test_bulk_goes_straight_between_pinned_memory_and_the_workers(guest: RdmaGuest) -> None:
    done = guest.python("../withstand/programs/random_program.py", "1", "5")
    assert done.split()[2] == "0", done
    guest.python("calls.py", "5", "8")  # copies of 8 MiB, pinned and not, both ways
    said = [
        list(map(int, re.findall(r"(\d+) (?:bytes|sent|to)", line)))
        for line in guest.worker_log("bulk over RDMA").splitlines()
    ]
    assert any(min(session) > 1 << 20 for session in said), said


def test_random_programs_compute_the_same_whatever_is_cut(guest: RdmaGuest) -> None:
    """Each piece of a connection is cut in rdma_test; here whole sessions are, and go on."""
    seconds = os.environ.get("SLUICE_TEST_CUT_SECONDS", "25")
    where = WAY, str(guest.data_port)
    said = guest.python("cut_programs.py", *where, seconds, way=True, seconds=500)
    found = json.loads(said)
    assert found["failed"] == []
    assert found["wrong"] == 0, found
    assert found["over_rdma"] >= 2, found
    print(f"{found['over_rdma']} cuts over RDMA, {found['cuts']} in all: {found}")


def test_a_program_that_forks(guest: RdmaGuest) -> None:
    assert guest.python("fork_program.py") == "child 3, wrong 0\n"


def test_auto_prefers_rdma_and_says_so(guest: RdmaGuest) -> None:
    found = guest.disturbed("nothing", channel="auto")
    assert (found["before"], found["after"]) == ([0, 0], [0, 0])
    assert BY_RDMA in found["said"]


def test_nonsense_where_a_session_would_come_back_changes_nothing(guest: RdmaGuest) -> None:
    found = json.loads(guest.python("hostile_return.py", seconds=120))
    assert set(found["worked"]) == {0}, found
    assert found["another's key"] is not True
    assert found["silent"] is True
    assert found["two at a time"] is None, "one at a time has memory"
    for what in ("rubbish", "no ring", "not there"):
        assert found[what] is True, found
    assert found["rubbish: verdict"] is False, "it is no answer: the connection ends"
    assert found["no ring: verdict"] is True
    assert found["not there: verdict"] is True
    assert found["said"].count(BY_RDMA) == 1
    assert GOES_ON not in found["said"]


def test_a_killed_program_gives_everything_back(
    guest: RdmaGuest, coming_tls_guest: RdmaGuest
) -> None:
    """While the server with TLS starts: its end takes a while."""
    found = guest.disturbed("killed")
    assert found == {"before": 0, "left": []}


def test_a_killed_worker_is_a_cuda_error(guest: RdmaGuest) -> None:
    found = guest.disturbed("worker-killed")
    assert found["before"] == 0
    assert found["after"] not in (0, None), found


def test_figures(guest: RdmaGuest, tls_guest: RdmaGuest) -> None:
    """What a call and copies take beside what the device does; a table and records, no verdict.

    From here on no server starts meanwhile: each finds the device as it is then.
    """
    *table, rounds, waits = guest.python("figures.py", seconds=200).splitlines()
    print("\n".join(table))
    run = Run("make test-rdma", setting="soft RoCE in a guest without KVM")
    records = [
        run.record(
            "idle_call_us",
            rested,
            "us",
            channel=channel,
            floor=after,
            floor_of="the same call right after it",
            rounds=PAUSES,
        )
        for channel, (rested, after) in json.loads(waits).items()
    ]
    for name, (ours, bare) in json.loads(rounds).items():
        unit, limit, floor_of = FIGURES[name]
        records.append(
            run.record(
                name,
                statistics.median(ours),
                unit,
                floor=statistics.median(bare),
                floor_of=floor_of,
                values=ours,
                limit=limit and limit * statistics.median(bare),
                channel="rdma",
                rounds=len(ours),
            )
        )
    write_measured("rdma", records)


def test_a_session_whose_link_goes_down_goes_on_by_tcp(guest: RdmaGuest) -> None:
    try:
        found = guest.disturbed("down")
    finally:
        guest.network_up()
    assert (found["before"], found["after"]) == ([0, 0], [0, 0]), found
    assert BY_RDMA in found["said"]
    assert GOES_ON in found["said"]


def goes_and_comes_back(guest: RdmaGuest) -> None:
    """Two sessions, by TCP while the link is down."""
    try:
        found = guest.disturbed("flaps", seconds=240)
    finally:
        guest.network_up()
    assert found["shown"] == [{"rdma": 2}, {"tcp": 2}, {"rdma": 2}], found
    assert found["worked"] == [0, 0], found
    copies, wrong = found["copied"]
    assert copies > 10
    assert wrong == 0
    for said in (found["copying_said"], found["holder_said"]):
        assert GOES_ON in said
        assert COMES_BACK in said


def relayed_goes_on_by_tcp(guest: RdmaGuest) -> None:
    """A session of a program on a host without a GPU, when the link goes down."""
    try:
        found = guest.disturbed("down", channel="relayed")
    finally:
        guest.network_up()
    assert (found["before"], found["after"]) == ([0, 0], [0, 0]), found
    assert BY_RDMA not in found["said"], "the client has shared memory and knows of no RDMA"
    log = guest.relay_log()
    assert re.search(r"relayed to node \S+ \(127.0.0.1:\d+\) over RDMA, by rxe0 port 1", log), log
    assert "the session goes on over another connection to node" in log


def test_a_session_comes_back_to_rdma_and_is_shown_where_it_is(guest: RdmaGuest) -> None:
    goes_and_comes_back(guest)


def test_a_relayed_session_goes_over_rdma_between_the_hosts_and_on_by_tcp(
    guest: RdmaGuest,
) -> None:
    relayed_goes_on_by_tcp(guest)


def test_where_the_data_port_has_tls_all_of_this_goes_through_it(tls_guest: RdmaGuest) -> None:
    """Terms of RDMA, at the beginning and for the way back, and what goes on by TCP."""
    assert f"data port: 127.0.0.1:{tls_guest.data_port} with TLS" in tls_guest.server_log()
    goes_and_comes_back(tls_guest)
    relayed_goes_on_by_tcp(tls_guest)


@pytest.mark.parametrize("when", ["busy", "idle"])
def test_a_session_whose_interface_is_removed_lets_the_device_go(
    guest: RdmaGuest, when: str
) -> None:
    try:
        found = guest.disturbed("removed", *(["idle"] if when == "idle" else []))
    finally:
        guest.network_up()
    assert (found["before"], found["after"]) == ([0, 0], [0, 0]), found
    assert GOES_ON in found["said"]
    assert not found["device"], "the device cannot be removed while a session holds it"


def test_without_a_device_auto_goes_by_tcp_and_rdma_says_what_is_missing(
    guest: RdmaGuest, coming_poor_guest: RdmaGuest
) -> None:
    """While a server starts that has none either."""
    found = guest.disturbed("nothing", channel="auto")
    assert found["after"] == [0, 0]
    assert BY_RDMA not in found["said"]
    environment = guest.environment("rdma")
    program = NATIVE.parent / "programs" / "vector_add"
    code, _, said = guest.guest.run(str(program), 60, environment)
    assert code != 0
    assert "SLUICE_CHANNEL is rdma, and there is no RDMA to the session's node" in said
    assert "there is no RDMA device" in said


def test_a_server_without_a_device_names_the_setting_and_serves_by_tcp(
    poor_guest: RdmaGuest,
) -> None:
    log = poor_guest.server_log()
    assert "[server] enable_rdma = true, and this host has no RDMA device" in log
    found = poor_guest.disturbed("nothing", channel="auto")
    assert found["after"] == [0, 0]
