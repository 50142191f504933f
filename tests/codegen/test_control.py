# SPDX-License-Identifier: Apache-2.0
"""control.yaml is checked when it is read, and both languages judge a message alike.

What C++ says of the same messages: tests/native/process/control_test.cc.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from control import load_control
from imported import RegistryError

from sluice.protocol import control

CHECKOUT = Path(__file__).resolve().parents[2]
API = CHECKOUT / "native" / "api"
GOOD = """
worker:
  about: a process
  received:
    session:
      answer: started
      descriptors: [region]
      fields:
        vgpus: {type: number, needed: true, from: 1, to: max_devices}
        channel: {type: text, one_of: [shm, tcp]}
      list: {name: vgpu, count: vgpus, fields: {place: {type: number, to: max_devices - 1}}}
  sent:
    started: {fields: {id: {type: text}}}
"""
SESSION = {
    "id": "12ab",
    "channel": "shm",
    "vgpus": "2",
    "vgpu.0.device": "GPU-0",
    "vgpu.0.memory_mib": "64",
    "vgpu.1.device": "GPU-1",
    "vgpu.1.memory_mib": "64",
    "newer": "than this",
}


def written(folder: Path, text: str) -> Path:
    shutil.copy(API / "protocol.yaml", folder)
    (folder / "control.yaml").write_text(text)
    return folder


def test_a_good_one_is_read(tmp_path: Path) -> None:
    (worker,) = load_control(written(tmp_path, GOOD))
    (session,) = worker.received
    assert [(f.name, f.least, f.most) for f in session.fields] == [
        ("vgpus", 1, 64), ("channel", 0, (1 << 63) - 1),
    ]  # fmt: skip
    assert (session.answer, session.descriptors, session.list) == ("started", ("region",), "vgpu")
    assert session.each[0].most == 63


@pytest.mark.parametrize(
    ("was", "becomes", "said"),
    [
        ("answer: started", "answer: begun", "answer: 'begun' is no message that the process"),
        ("count: vgpus", "count: cards", "count: 'cards' is no number of the message"),
        ("to: max_devices}\n", "to: 65}\n", "is no number of the message that ends at 64"),
        ("to: max_devices}\n", "to: most}\n", "'most' is neither a number nor a limit"),
        ("from: 1,", "from: 99,", "nothing is from 99 to 64"),
        ("{type: text, one_of", "{type: word, one_of", "type 'word' is none of"),
        ("{type: text, one_of", "{type: hex, one_of", "one_of is for text"),
        ("id: {type: text}", "id: {type: text, to: 5}", "from and to are for numbers"),
        ("id: {type: text}", "id: text", "'text' is no mapping"),
        ("descriptors: [", "files: [", "unknown key 'files'"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, was: str, becomes: str, said: str) -> None:
    assert was in GOOD
    with pytest.raises(RegistryError) as error:
        load_control(written(tmp_path, GOOD.replace(was, becomes, 1)))
    assert str(error.value).startswith("control.yaml: worker: ")
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, ""),
        ({"id": ""}, "session: id is missing"),
        (
            {"id": "mine"},
            "session: id is 'mine'; an even number of hexadecimal digits is wanted",
        ),
        (
            {"channel": "smoke"},
            "session: channel is 'smoke'; one of shm, ivshmem, vsock, tcp, rdma is wanted",
        ),
        ({"vgpus": "65"}, "session: vgpus is '65'; a number from 1 to 64 is wanted"),
        ({"vgpus": "٢"}, "session: vgpus is '٢'; a number from 1 to 64 is wanted"),
        ({"vgpus": "3"}, "session: vgpu.2.memory_mib is missing"),
        (
            {"vgpu.1.memory_mib": "0"},
            "session: vgpu.1.memory_mib is '0'; a number from 1 to 1073741824 is wanted",
        ),
        ({"slot": "-1"}, "session: slot is '-1'; a number from 0 to 4095 is wanted"),
        (
            {"request": "0"},
            "session: request is '0'; an even number of hexadecimal digits is wanted",
        ),
    ],
)
def test_a_message_is_judged_as_in_cpp(changed: dict[str, str], said: str) -> None:
    assert control.WORKER_RECEIVED["session"].fault(SESSION | changed) == said


def test_a_list_without_a_count_ends_where_its_keys_end() -> None:
    compute = control.WORKER_RECEIVED["compute"]
    assert compute.fault({}) == ""
    assert compute.fault({"vgpu.0.compute_percent": "50"}) == ""
    assert "from 1 to 100" in compute.fault({"vgpu.0.compute_percent": "500"})
