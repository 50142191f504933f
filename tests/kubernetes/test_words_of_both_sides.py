# SPDX-License-Identifier: Apache-2.0
"""The pool's words in the cluster's, and back: slices, devices' names, claims. Without I/O."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.kubernetes.claims import ClaimError, is_allocated, read_claim
from sluice.kubernetes.naming import (
    attribute_name,
    claim_label,
    claim_of_label,
    device_name,
    gpu_word,
    read_device_name,
)
from sluice.kubernetes.slices import (
    MOST_DEVICES,
    Reach,
    devices_of,
    is_for,
    keep_times,
    lacks_division,
    lacks_taints,
    same_spec,
    slices_of,
)

ID = "0123456789abcdef"
UUID = "GPU-53c0a8e4-0000-4000-8000-00000000000A"
UID = "6d964394-9a24-451d-a0e4-2499d34c6c33"


def gpu(**more: Any) -> dict[str, Any]:
    return {
        "id": f"n1:{UUID}",
        "node": "n1",
        "uuid": UUID,
        "model": "NVIDIA H200",
        "architecture": "sm_90",
        "software": False,
        "memory_mib": 140000,
        "state": "up",
        "mode": "pooled",
        "health": "ok",
        **more,
    }


def slot(memory_mib: int = 1000, compute_percent: int = 25) -> dict[str, Any]:
    return {
        "gpu": f"n1:{UUID}",
        "memory_mib": memory_mib,
        "compute_percent": compute_percent,
    }


def reservation(*slots: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "id": ID,
        "owner_kind": "label",
        "owner": "k8s",
        "state": "held",
        "within": "",
        "slots": list(slots),
        **more,
    }


def published(
    *slots: dict[str, Any], divided: bool = True, tainted: bool = False, **of_gpu: Any
) -> list[dict[str, Any]]:
    found = devices_of(
        [reservation(*slots)],
        {f"n1:{UUID}": gpu(**of_gpu)},
        {"n1": {"rack": "r12"}},
        divided=divided,
        tainted=tainted,
    )
    return found.get("n1", [])


@given(st.text(min_size=1, max_size=200), st.none() | st.integers(0, 9999))
def test_every_device_has_a_name_that_kubernetes_takes(uuid: str, number: int | None) -> None:
    name = device_name(uuid, ID, number)
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name)
    assert len(name) <= 63
    assert read_device_name(name) == (gpu_word(uuid), ID)


@pytest.mark.parametrize("name", ["", "gpu", ID, "gpu-123", f"gpu-{ID}x", "gpu-0123456789ABCDEF"])
def test_others_devices_are_known_as_such(name: str) -> None:
    with pytest.raises(ValueError):
        read_device_name(name)


@given(st.text(min_size=1))
def test_attributes_are_identifiers(label: str) -> None:
    assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,31}", attribute_name(label))


def test_labels_of_claims() -> None:
    assert claim_of_label(claim_label(UID)) == UID
    assert claim_of_label("team-a") == ""


def test_a_device_is_what_the_reservation_holds_of_a_gpu() -> None:
    [device] = published(slot(), slot(3000, 50))
    capacity = device["capacity"]
    assert capacity["memory"]["value"] == "4000Mi"
    assert capacity["memory"]["requestPolicy"]["default"] == "1000Mi"
    assert capacity["compute"]["value"] == "75"
    assert capacity["slices"]["value"] == "2"  # each part has a context of its own
    attributes = device["attributes"]
    assert attributes["model"] == {"string": "NVIDIA H200"}
    assert attributes["architecture"] == {"string": "sm_90"}
    assert attributes["gpu_memory_mib"] == {"int": 140000}
    assert attributes["label_rack"] == {"string": "r12"}


def test_the_smallest_slice_has_a_policy_that_kubernetes_takes() -> None:
    [device] = published(slot(1, 1))
    for name, least in (("memory", "1Mi"), ("compute", "1")):
        assert device["capacity"][name]["requestPolicy"] == {
            "default": least,
            "validValues": [least],
        }


def test_without_consumable_capacity_each_vgpu_is_a_device() -> None:
    found = published(slot(), slot(3000, 50), divided=False)
    assert [each["name"][-2:] for each in found] == ["-0", "-1"]
    assert [each["capacity"]["memory"]["value"] for each in found] == ["1000Mi", "3000Mi"]
    assert all("allowMultipleAllocations" not in each for each in found)


@pytest.mark.parametrize(
    "wrong", [{"state": "lost"}, {"mode": "draining"}, {"health": "fault"}, {"health": "held"}]
)
def test_what_the_pool_does_not_give_is_not_published(wrong: dict[str, str]) -> None:
    assert published(slot(), **wrong) == []


def test_only_the_clusters_own_reservations_count() -> None:
    assert is_for(reservation(), "k8s")
    for other in (
        {"owner": "other"},
        {"owner_kind": "project"},
        {"state": "waiting"},
        {"within": "x"},
    ):
        assert not is_for(reservation(**other), "k8s")


def test_many_devices_are_several_slices_of_one_pool() -> None:
    devices = [{"name": f"d{n}"} for n in range(MOST_DEVICES + 1)]
    first, second = slices_of("n1", devices, Reach())
    assert (len(first["devices"]), len(second["devices"])) == (MOST_DEVICES, 1)
    assert first["pool"] == {"name": "n1", "resourceSliceCount": 2}
    assert first["nodeName"] == "n1"
    [wide] = slices_of("n1", devices[:1], Reach(("sluice", "yes")))
    [term] = wide["nodeSelector"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": "sluice", "operator": "In", "values": ["yes"]}]


def test_a_spec_that_says_the_same_is_not_written_again() -> None:
    [spec] = slices_of("n1", published(slot()), Reach())
    stored = {**spec, "pool": {**spec["pool"], "generation": 7}, "perDeviceNodeSelection": None}
    assert same_spec(spec, stored)
    assert not same_spec(spec, {**stored, "nodeName": "n2"})
    assert not lacks_division([stored])
    dropped = [
        {k: v for k, v in d.items() if k[0] != "a" or k == "attributes"} for d in spec["devices"]
    ]
    assert lacks_division([{**stored, "devices": dropped}])


def test_a_gpu_that_takes_nothing_new_has_a_taint_or_leaves() -> None:
    for of_gpu, value, effect in (
        ({"health": "fault"}, "fault", "NoExecute"),
        ({"health": "fault", "state": "lost"}, "fault", "NoExecute"),
        ({"health": "held"}, "held", "NoSchedule"),
        ({"state": "lost"}, "lost", "NoSchedule"),
        ({"mode": "draining"}, "drained", "NoSchedule"),
    ):
        [device] = published(slot(), tainted=True, **of_gpu)
        taint = {"key": "vgpu.sluice.io/condition", "value": value, "effect": effect}
        assert device["taints"] == [taint]
        assert published(slot(), **of_gpu) == []
    [device] = published(slot(), tainted=True, health="flagged")
    assert "taints" not in device


def test_a_taint_that_stays_is_not_written_again_and_keeps_its_time() -> None:
    began = "2026-11-01T00:00:00Z"
    [spec] = slices_of("n1", published(slot(), tainted=True, health="fault"), Reach())
    stored = copy.deepcopy(spec)
    stored["devices"][0]["taints"][0]["timeAdded"] = began
    assert same_spec(spec, stored)
    keep_times([spec], [stored])
    assert spec["devices"][0]["taints"][0]["timeAdded"] == began
    [held] = slices_of("n1", published(slot(), tainted=True, health="held"), Reach())
    keep_times([held], [stored])
    assert "timeAdded" not in held["devices"][0]["taints"][0]
    # an older cluster drops what it does not know
    wanted = {"n1": spec["devices"]}
    assert not lacks_taints(wanted, [stored])
    del stored["devices"][0]["taints"]
    assert lacks_taints(wanted, [stored])


def test_slices_with_taints_have_half_as_many_devices() -> None:
    devices = [{"name": f"d{number}"} for number in range(100)]
    assert len(slices_of("n1", devices, Reach())) == 1
    devices[7]["taints"] = [{"key": "k"}]
    assert [len(s["devices"]) for s in slices_of("n1", devices, Reach())] == [64, 36]


def claim(*results: dict[str, Any]) -> dict[str, Any]:
    return {
        "metadata": {"uid": UID, "namespace": "red", "name": "c"},
        "status": {"allocation": {"devices": {"results": list(results)}}},
    }


def result(**more: Any) -> dict[str, Any]:
    return {
        "driver": "vgpu.sluice.io",
        "request": "gpu",
        "pool": "n1",
        "device": device_name(UUID, ID),
        "shareID": "s1",
        "consumedCapacity": {"memory": "1Gi", "compute": "10", "slices": "1"},
        **more,
    }


def test_a_claim_asks_for_exactly_what_was_allocated() -> None:
    wanted = read_claim(claim(result(), result(driver="other.example.com")), UID)
    assert wanted.reservation == ID
    assert wanted.places(reservation(slot())) == [
        {"gpu": f"n1:{UUID}", "memory_mib": 1024, "compute_percent": 10}
    ]


def test_a_device_that_is_not_divided_is_taken_whole() -> None:
    whole = result(device=device_name(UUID, ID, 3))
    del whole["consumedCapacity"]
    [place] = read_claim(claim(whole), UID).places(reservation(slot(3000, 50)))
    assert (place["memory_mib"], place["compute_percent"]) == (3000, 50)


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (claim(), "not allocated"),
        (claim(result(device="gpu-7")), "no device of"),
        (claim(result(consumedCapacity={"memory": "lots"})), "capacity memory=lots"),
        (claim(result(consumedCapacity={"memory": "100"})), "ask for whole MiB"),
        (claim(result(consumedCapacity={"compute": "2500m"})), "ask for a whole number"),
        (claim(result(consumedCapacity={"memory": "0"})), "ask for whole MiB"),
        (claim(result(), result(device=device_name(UUID, "f" * 16))), "several reservations"),
    ],
)
def test_what_is_wrong_with_a_claim_is_said(found: dict[str, Any], says: str) -> None:
    with pytest.raises(ClaimError, match=says):
        read_claim(found, UID)


@pytest.mark.parametrize("parameters", [None, {}, [], 7, "x" * 10_000, {"memory": ["1Gi"]}])
@pytest.mark.parametrize(("source", "whose"), [("FromClaim", "claim"), ("FromClass", "class")])
def test_parameters_of_a_claim_are_refused_and_not_passed_over(
    parameters: Any, source: str, whose: str
) -> None:
    found = claim(result())
    opaque = {"driver": "vgpu.sluice.io", "parameters": parameters}
    others = {"source": source, "opaque": {**opaque, "driver": "other.example.com"}}
    devices = found["status"]["allocation"]["devices"]
    devices["config"] = [others]
    assert read_claim(found, UID).reservation == ID
    devices["config"] = [others, {"source": source, "opaque": opaque}]
    with pytest.raises(ClaimError, match=f"the {whose}'s devices.config .* capacity"):
        read_claim(found, UID)


def test_a_claim_of_another_uid_is_refused() -> None:
    with pytest.raises(ClaimError, match="another one now"):
        read_claim(claim(result()), "0" * 36)


def test_the_vgpus_of_a_claim_are_alike_and_on_one_node() -> None:
    small = result(consumedCapacity={"memory": "1Mi", "compute": "1"})
    with pytest.raises(ClaimError, match="different sizes"):
        read_claim(claim(result(), small), UID).places(reservation(slot()))
    far = {**slot(), "gpu": f"n2:{UUID}"}
    with pytest.raises(ClaimError, match="several nodes"):
        read_claim(claim(result(), result(pool="n2")), UID).places(reservation(slot(), far))
    with pytest.raises(ClaimError, match="holds nothing of"):
        read_claim(claim(result(pool="n9")), UID).places(reservation(slot()))


def test_a_claim_without_allocation_holds_nothing() -> None:
    assert is_allocated(claim(result()))
    assert not is_allocated(claim(result(driver="other.example.com")))
    assert not is_allocated({"metadata": {}, "status": {}})
    assert not is_allocated({"metadata": {}})
