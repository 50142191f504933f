# SPDX-License-Identifier: Apache-2.0
"""VMs in the console: what they ask for, whole GPUs that they have, and a GPU's way out."""

from __future__ import annotations

import html
import re

import pytest

from sluice.console.switch_steps import steps_of
from sluice.controller.pool.decisions import Decisions
from sluice.controller.pool.gpus.attachment import Attachment, AttachmentState
from sluice.controller.pool.model import GpuKey, GpuMode, GpuSwitch, Mode, SwitchStep
from sluice.controller.pool.reservations.machines import Machine
from tests.console.place import Place

GPU = "node-a:node-a-gpu0"
KEY = GpuKey("node-a", "node-a-gpu0")
PLACE = (KEY.node, KEY.uuid)
VM = "0b6f6a53-8a0c-4f7c-9a0e-3f6f0a3f0001"
HOSTILE = "<script>alert(1)</script>"


async def report(place: Place, *machines: Machine) -> None:
    await place.grants.step(lambda: place.pool.machines.report("node-a", machines))


async def test_what_vms_ask_for_is_shown_with_its_reservation_and_trouble(place: Place) -> None:
    place.node()
    await report(
        place,
        Machine(VM, HOSTILE, "node-a", "vision", 1, 2000, 25, 3, Mode.RESERVED),
        Machine("other", "web", "node-a", "speech", 2, 99_000, 50, 0, Mode.AUTO, ("<b>no room",)),
    )
    viewer = await place.signed_in("viewer")
    page = (await viewer.get("/vms")).text
    assert HOSTILE not in page
    assert html.escape(HOSTILE) in page
    assert "1 × 2,000 MiB, 25 %" in page
    reservation = place.pool.machines.records[VM].reservation
    assert f"/console/reservation?id={reservation}" in page
    assert "&lt;b&gt;no room" in page
    assert "No VM has one." in page
    headers = {"Authorization": f"Bearer {place.secrets['viewer']}"}
    found = (await viewer.client.get("/v1/vms?project=vision", headers=headers)).json()["vms"]
    assert [(vm["uuid"], vm["reservation"], vm["mode"]) for vm in found] == [
        (VM, reservation, "reserved")
    ]
    tenant = await place.signed_in("tenant")
    assert (await tenant.get("/vms")).status_code == 404
    headers = {"Authorization": f"Bearer {place.secrets['tenant']}"}
    assert (await tenant.client.get("/v1/vms", headers=headers)).status_code == 403


async def test_what_a_vm_asks_for_is_changed_as_rest_says(place: Place) -> None:
    place.node()
    await report(
        place,
        Machine(VM, HOSTILE, "node-a", "vision", 1, 2000, 25, 3, Mode.AUTO),
        Machine("sick", "sick", "node-a", problems=("no size",)),
    )
    operator = await place.signed_in("operator")
    page = (await operator.get("/vms")).text
    assert f"action=vm.request&amp;target={VM}" in page
    assert "target=sick" not in page
    assert "action=vm.request" not in (await (await place.signed_in("viewer")).get("/vms")).text
    plan = await operator.get("/do", action="vm.request", target=VM)
    assert "Now it asks for 1 vGPU(s) of 2000 MiB and 25 %, auto, priority 3." in plan.text
    assert HOSTILE not in plan.text
    form = await operator.form("vm.request", VM)
    assert (form["count"], form["memory_mib"], form["mode"]) == ("1", "2000", "auto")
    refused = await operator.post("/do", {**form, "count": "2"})
    assert refused.status_code == 503, "its server is not connected here"
    assert "start its sluice-server" in refused.text
    wrong = await operator.post("/do", {**form, "compute_percent": "0"})
    assert wrong.status_code == 422
    await report(place, Machine(VM, HOSTILE, "node-a", "vision", 2, 2000, 25, 3, Mode.AUTO))
    late = await operator.post("/do", {**form, "count": "3"})
    assert late.status_code == 412
    assert any("PATCH /v1/vms/" in line for line in await place.audit())


async def test_many_vms_come_in_pages(place: Place) -> None:
    place.node()
    await report(place, *(Machine(f"u{n}", f"vm{n:03}", "node-a", "p", 1, 1) for n in range(60)))
    viewer = await place.signed_in("viewer")
    page = (await viewer.get("/vms")).text
    assert page.count("as it comes") == 50
    following = re.search(r'class="pager"><a[^>]*href="([^"]+)"', page)
    assert following
    second = (await viewer.client.get(html.unescape(following[1]))).text
    assert second.count("as it comes") == 10


async def test_a_gpu_goes_out_of_the_pool_step_by_step_and_back(place: Place) -> None:
    place.node()
    await place.granted()
    operator = await place.signed_in("operator")

    def steps(page: str) -> list[tuple[str, str]]:
        return re.findall(r'<li class="(\w+)"[^>]*>([^<]+)<', page)

    assert not steps((await operator.get("/gpu", id=GPU)).text)
    assert (await operator.act("gpu.native", GPU)).status_code == 303
    page = (await operator.get("/gpu", id=GPU)).text
    assert [state for state, _ in steps(page)] == ["done", "now", "ahead", "ahead", "ahead"]
    assert 'aria-current="step"' in page
    assert "waits for 1 grant(s) to end" in page
    assert "action=gpu.attach" not in page
    assert (await operator.act("gpu.return", GPU)).status_code == 303
    assert not steps((await operator.get("/gpu", id=GPU)).text)


@pytest.mark.parametrize(
    ("mode", "target", "step", "held", "states"),
    [
        (GpuMode.DRAINING, GpuMode.NATIVE, SwitchStep.HANDING_OVER, None,
         "done done now ahead ahead"),
        (GpuMode.DRAINING, GpuMode.DRAINED, SwitchStep.STUCK, None, "done done stuck ahead"),
        (GpuMode.DRAINED, GpuMode.DRAINED, SwitchStep.NONE, None, "done done done done"),
        (GpuMode.NATIVE, GpuMode.NATIVE, SwitchStep.NONE, None, "done done done done ahead"),
        (GpuMode.NATIVE, GpuMode.NATIVE, SwitchStep.NONE, AttachmentState.ATTACHING,
         "done done done done now"),
        (GpuMode.NATIVE, GpuMode.NATIVE, SwitchStep.NONE, AttachmentState.ATTACHED,
         "done done done done done"),
        (GpuMode.NATIVE, GpuMode.NATIVE, SwitchStep.NONE, AttachmentState.DETACHING,
         "done done done done now"),
        (GpuMode.RETURNING, GpuMode.POOLED, SwitchStep.HANDING_OVER, None, "done now ahead"),
        (GpuMode.RETURNING, GpuMode.POOLED, SwitchStep.STUCK, None, "done stuck ahead"),
        (GpuMode.POOLED, GpuMode.POOLED, SwitchStep.NONE, None, ""),
    ],
)  # fmt: skip
def test_steps_are_those_of_the_record(
    mode: GpuMode, target: GpuMode, step: SwitchStep, held: AttachmentState | None, states: str
) -> None:
    switch = GpuSwitch(*PLACE, mode, target, preempt=False, reason="why", since=0.0, step=step)
    attachment = Attachment(*PLACE, VM, "web", held, 0.0) if held else None
    found = steps_of(switch, attachment)
    assert " ".join(each.state for each in found) == states
    for each in found:
        assert each.state not in ("now", "stuck") or each.note == ("" if held else "why")


async def native(place: Place) -> None:
    """A GPU out of the pool, as its node would have said."""
    switch = GpuSwitch(*PLACE, GpuMode.NATIVE, GpuMode.NATIVE, False, "", 0.0)
    place.pool.switches[KEY] = switch


async def test_a_gpu_is_given_to_a_vm_and_taken_back_as_rest_says(place: Place) -> None:
    place.node(pci_address="0000:01:00.0")
    operator = await place.signed_in("operator")
    page = await operator.get("/do", action="gpu.attach", target=GPU)
    assert "It is pooled: take it out of the pool." in page.text
    await native(place)
    assert "action=gpu.attach" in (await operator.get("/gpu", id=GPU)).text
    refused = await operator.act("gpu.attach", GPU, domain="", rom_bar="1")
    assert refused.status_code == 422
    assert "domain" in refused.text
    refused = await operator.act("gpu.attach", GPU, domain="web", when="never")
    assert refused.status_code == 422
    refused = await operator.act("gpu.attach", GPU, domain="web", rom_bar="1")
    assert refused.status_code == 409, "its server is not connected here"
    place.pool.attachments[KEY] = Attachment(
        *PLACE, VM, HOSTILE, AttachmentState.ATTACHED, 0.0, live=True, generation=4
    )
    shown = (await operator.get("/gpu", id=GPU)).text
    assert "action=gpu.detach" in shown
    assert "action=gpu.return" not in shown
    assert HOSTILE not in shown
    assert html.escape(HOSTILE) in (await operator.get("/vms")).text
    plan = await operator.get("/do", action="gpu.detach", target=GPU)
    assert "what computes on it there fails" in plan.text
    assert HOSTILE not in plan.text
    stale = await operator.form("gpu.detach", GPU)
    assert stale["generation"] == "4"
    place.pool.attachments[KEY].generation = 5
    assert (await operator.post("/do", stale)).status_code == 412
    refused = await operator.act("gpu.detach", GPU)
    assert refused.status_code == 409
    again = await operator.get("/do", action="gpu.attach", target=GPU)
    assert "has it already." in again.text


async def test_a_quota_is_removed(place: Place) -> None:
    place.node()
    operator = await place.signed_in("operator")
    assert "action=quota.remove" not in (await operator.get("/project", name="vision")).text
    await operator.act("quota.set", "vision", vgpus="4")
    stale = await operator.form("quota.remove", "vision")
    await operator.act("quota.set", "vision", vgpus="5")
    assert (await operator.post("/do", stale)).status_code == 412
    assert (await operator.act("quota.remove", "vision")).status_code == 303
    assert "vision" not in place.pool.quotas.limits
    assert (
        "It has none." in (await operator.get("/do", action="quota.remove", target="vision")).text
    )


async def test_a_projects_page_has_its_events_and_nobody_elses(place: Place) -> None:
    place.node()
    own, other = await place.granted("vision"), await place.granted("speech")

    def note() -> Decisions:
        place.pool.note("test.note", own.grant.id, "of vision's")
        place.pool.note("test.note", own.session.id, f"of vision's session {HOSTILE}")
        place.pool.note("test.note", other.grant.id, "of speech's")
        return Decisions()

    await place.grants.step(note)
    tenant = await place.signed_in("tenant")
    page = (await tenant.get("/project", name="vision")).text
    assert "of vision&#39;s session" in page
    assert HOSTILE not in page
    assert "of speech" not in page


async def test_a_grants_figures_are_its_sessions_together(place: Place) -> None:
    from sluice.console.session_figures import COLUMNS, summed

    place.node()
    own, other = await place.granted("vision"), await place.granted("speech")
    tenant = await place.signed_in("tenant")
    assert f"/console/grant/figures?id={own.grant.id}" in (
        await tenant.get("/grant", id=own.grant.id)).text  # fmt: skip
    answer = await tenant.get("/grant/figures", id=own.grant.id)
    assert answer.status_code == 200
    assert "is not connected, and keeps the figures" in answer.text
    assert (await tenant.get("/grant/figures", id=other.grant.id)).status_code == 404
    rest = {column.field: 1.0 for column in COLUMNS}
    first = [{"time": f"2026-01-01T00:00:{s:02}+00:00", **rest} for s in (0, 15, 30)]
    second = [{"time": "2026-01-01T00:00:17+00:00", **rest}]
    assert [step["gpus"] for step in summed([first, second])] == [1.0, 2.0, 1.0]
