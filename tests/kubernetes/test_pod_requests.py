# SPDX-License-Identifier: Apache-2.0
"""What pods ask for, in our words and others', and what is wrong with it. Without I/O.

Whatever a pod says is its user's word: it is read, or refused with the field and the fix, and never
anything else.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
from typing import Any

import jsonpatch
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.kubernetes.naming import container_label
from sluice.kubernetes.pod_requests import ContainerWant, PodRequestError, read_pod
from sluice.kubernetes.spellings import VOCABULARIES, Spelling
from sluice.kubernetes.webhook import ReviewError, review
from tests.rigs.kubernetes.rig import CHECKOUT

VGPU, MEMORY, COMPUTE = "sluice.io/vgpu", "sluice.io/vgpu-memory-mib", "sluice.io/vgpu-compute"
UID = "6d964394-9a24-451d-a0e4-2499d34c6c33"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner),
    max_leaves=8,
)


def container(name: str = "cuda", env: Any = None, **limits: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "resources": {"limits": dict(limits)}}
    if env is not None:
        found["env"] = env
    return found


def limited(name: str = "cuda", **limits: Any) -> dict[str, Any]:
    words = {"vgpu": VGPU, "memory": MEMORY, "compute": COMPUTE}
    return container(name, **{words[key]: value for key, value in limits.items()})


def pod(*containers: Any, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"uid": UID, "namespace": "red", "name": "p"},
        "spec": {"containers": list(containers), **spec},
    }


def test_containers_are_read_alike_whatever_they_leave_out() -> None:
    plain = {"name": "plain"}
    sidecar = {**limited("side", vgpu="1"), "restartPolicy": "Always"}
    found = read_pod(
        pod(
            plain, limited(vgpu="2", memory="3k", compute=10), limited("zero", vgpu="0"),
            initContainers=[plain, sidecar],
        )
    )  # fmt: skip
    assert found.containers == (ContainerWant("side", 1), ContainerWant("cuda", 2, 3000, 10))
    assert set(found.labels()) == {container_label(UID, "cuda"), container_label(UID, "side")}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (
            {"vgpu": "-1"},
            r"spec.containers\[0\].resources.limits\[sluice.io/vgpu\]=-1: give a whole",
        ),
        ({"vgpu": "1.5"}, "give a whole number, 0 to 64"),
        ({"vgpu": "65"}, "0 to 64"),
        ({"vgpu": "1e999999999"}, "give a whole number"),
        ({"vgpu": "Infinity"}, "give a whole number"),
        ({"vgpu": "NaN"}, "give a whole number"),
        ({"vgpu": "many"}, "give a whole number"),
        ({"vgpu": ""}, "give a whole number"),
        ({"vgpu": True}, "give a whole number"),
        ({"vgpu": None}, "give a whole number"),
        ({"vgpu": ["1"]}, "give a whole number"),
        ({"vgpu": "1" * 10_000}, "give a whole number"),
        ({"vgpu": "1", "memory": "4294967296"}, "0 to 2147483647"),
        ({"vgpu": "1", "compute": "101"}, "0 to 100"),
        ({"memory": "100"}, "add `sluice.io/vgpu: 1`"),
    ],
)
def test_a_wrong_quantity_is_refused_with_its_field(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(PodRequestError, match=says):
        read_pod(pod(limited(**wrong)))


def test_an_init_container_has_no_vgpu_without_dra() -> None:
    with pytest.raises(PodRequestError, match=r"spec.initContainers\[0\].*restartPolicy: Always"):
        read_pod(pod(initContainers=[limited(vgpu="1")]))


@settings(deadline=None)
@given(JSON)
def test_whatever_is_sent_as_a_pod_is_read_or_refused(found: Any) -> None:
    for sent in (found, {"metadata": found, "spec": found}, pod(found), pod(container=found)):
        if not isinstance(sent, dict):
            continue
        with contextlib.suppress(PodRequestError):
            read_pod(sent)


def reviewed(sent: dict[str, Any], *spellings: Spelling) -> dict[str, Any]:
    asked = {"apiVersion": "admission.k8s.io/v1", "request": {"uid": "u", "object": sent}}
    answer = review(asked, spellings)["response"]
    assert answer["uid"] == "u"
    found: dict[str, Any] = answer
    return found


def patched(sent: dict[str, Any], *spellings: Spelling) -> dict[str, Any]:
    """The pod as the API server stores it."""
    answer = reviewed(sent, *spellings)
    assert answer["allowed"], answer
    if "patch" not in answer:
        return sent
    assert answer["patchType"] == "JSONPatch"
    result: dict[str, Any] = jsonpatch.apply_patch(
        sent, json.loads(base64.b64decode(answer["patch"]))
    )
    return result


def limits_of(found: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = found["spec"]["containers"][0]["resources"]["limits"]
    return result


def test_a_pod_that_asks_for_nothing_stays_as_it_is() -> None:
    for sent in (pod({"name": "c"}), pod(container(cpu="1")), pod(limited(vgpu="1", memory="5"))):
        assert "patch" not in reviewed(sent, *Spelling)


def test_a_size_alone_is_one_vgpu() -> None:
    assert limits_of(patched(pod(limited(memory="100")))) == {MEMORY: "100", VGPU: "1"}


@pytest.mark.parametrize(
    ("spelling", "theirs", "env", "ours"),
    [
        ("nvidia", {"nvidia.com/gpu": "2"}, [], {VGPU: "2"}),
        ("nvidia", {"nvidia.com/gpu.shared": "1"}, [], {VGPU: "1"}),
        (
            "hami",
            {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"},
            [],
            {VGPU: "1", MEMORY: "3000", COMPUTE: "30"},
        ),
        ("hami", {"nvidia.com/gpumem": "3k"}, [], {VGPU: "1", MEMORY: "3000"}),
        (
            "bitfusion",
            {"bitfusion.io/gpu-amount": "1", "bitfusion.io/gpu-percent": "50"},
            [],
            {VGPU: "1", COMPUTE: "50"},
        ),
        (
            "bitfusion",
            {"bitfusion.io/gpu-num": "1", "bitfusion.io/gpu-memory": "2Gi"},
            [],
            {VGPU: "1", MEMORY: "2048"},
        ),
        (
            "bitfusion",
            {"bitfusion.io/gpu-num": "1", "bitfusion.io/gpu-memory": "2000"},
            [],
            {VGPU: "1", MEMORY: "2000"},
        ),
        (
            "orionx",
            {"virtaitech.com/gpu": "1"},
            [{"name": "ORION_GMEM", "value": "4096"}, {"name": "ORION_RATIO", "value": "30"}],
            {VGPU: "1", MEMORY: "4096", COMPUTE: "30"},
        ),
    ],
)
def test_other_systems_words(
    spelling: str, theirs: dict[str, str], env: list[Any], ours: dict[str, str]
) -> None:
    sent = pod(container(env=env, cpu="1", **theirs))
    sent["spec"]["containers"][0]["resources"]["requests"] = dict(theirs)
    made = patched(sent, Spelling(spelling))
    assert limits_of(made) == {"cpu": "1", **ours}
    assert made["spec"]["containers"][0]["resources"]["requests"] == ours
    assert limits_of(patched(sent)) == limits_of(sent)  # nobody said that they are to be read


@pytest.mark.parametrize(
    ("theirs", "says"),
    [
        ({"nvidia.com/gpu": "-1"}, "give a whole number, 0 to 64"),
        ({"nvidia.com/gpumem-percentage": "50"}, "give nvidia.com/gpumem in MiB"),
        ({"nvidia.com/gpu": "1", "bitfusion.io/gpu-num": "2"}, "name it once"),
        ({"bitfusion.io/gpu-memory": "1e999999999Gi"}, "give a whole number"),
    ],
)
def test_what_is_wrong_in_others_words_is_refused(theirs: dict[str, str], says: str) -> None:
    answer = reviewed(pod(container(**theirs)), *Spelling)
    assert not answer["allowed"]
    assert says in answer["status"]["message"]


def test_our_own_words_beside_others_count() -> None:
    theirs = {"nvidia.com/gpumem": "3000", "nvidia.com/gpu": "4"}
    sent = pod(container(**theirs, **{MEMORY: "500", VGPU: "1"}))
    assert limits_of(patched(sent, Spelling.HAMI)) == {MEMORY: "500", VGPU: "1"}


@settings(deadline=None)
@given(JSON)
def test_whatever_is_sent_for_review_is_answered_or_refused(found: Any) -> None:
    whole = {"apiVersion": "admission.k8s.io/v1", "request": {"uid": "u", "object": found}}
    limits = pod({"name": "c", "resources": {"limits": found, "requests": found}, "env": found})
    for sent in (
        found,
        {"request": found},
        whole,
        {**whole, "request": {"uid": "u", "object": limits}},
    ):
        if not isinstance(sent, dict):
            continue
        with contextlib.suppress(ReviewError):
            json.dumps(review(sent, tuple(Spelling)))


def test_the_page_names_every_word_of_other_systems() -> None:
    page = (CHECKOUT / "docs" / "kubernetes.md").read_text()
    section = page.partition("## Manifests of other systems")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([A-Za-z.]+(?:/[a-z.-]+)|ORION_[A-Z]+)", section))
    known = {
        name
        for each in VOCABULARIES.values()
        for name in (*each.resources, *each.variables, *each.refused)
    }
    assert known <= named, known - named
