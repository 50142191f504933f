# SPDX-License-Identifier: Apache-2.0
"""The mutating webhook: pods say what they want in our words before anybody places them. Pure.

Called by https_service.py for the API server with an AdmissionReview (admission.k8s.io/v1). It adds
`sluice.io/vgpu: 1` where only a size is named, puts our names in the place of other systems' where
`[kubernetes] spellings` has them, and refuses what could never start, with the field and the fix. A
pod that asks for nothing of ours is let through as it is.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from sluice.kubernetes.naming import VGPU
from sluice.kubernetes.pod_requests import (
    OWN,
    PodRequestError,
    containers_of,
    limits_of,
    wants_of,
)
from sluice.kubernetes.spellings import Spelling, translate

API_VERSION = "admission.k8s.io/v1"
REFUSED = 422
LONGEST_UID = 128


class ReviewError(ValueError):
    """What was sent is no AdmissionReview; the text says what is missing."""


def review(asked: Mapping[str, Any], spellings: tuple[Spelling, ...] = ()) -> dict[str, Any]:
    """The answer to an AdmissionReview; raises ReviewError."""
    request = asked.get("request")
    if asked.get("apiVersion") != API_VERSION or not isinstance(request, Mapping):
        raise ReviewError(f"the request is no AdmissionReview of {API_VERSION}")
    uid, pod = request.get("uid"), request.get("object")
    if not isinstance(uid, str) or not 1 <= len(uid) <= LONGEST_UID:
        raise ReviewError(f"request.uid is missing, or no text of 1 to {LONGEST_UID} signs")
    answer: dict[str, Any] = {"uid": uid, "allowed": True}
    try:
        if not isinstance(pod, Mapping):
            raise PodRequestError("request.object is missing, or no object")
        if patch := changes(pod, spellings):
            answer["patchType"] = "JSONPatch"
            answer["patch"] = base64.b64encode(json.dumps(patch).encode()).decode()
    except PodRequestError as error:
        answer |= {"allowed": False, "status": {"code": REFUSED, "message": f"sluice: {error}"}}
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": answer}


def changes(pod: Mapping[str, Any], spellings: tuple[Spelling, ...]) -> list[dict[str, Any]]:
    """A JSON patch (RFC 6902) that makes the pod ours; raises PodRequestError."""
    spec = pod.get("spec")
    if not isinstance(spec, Mapping):
        raise PodRequestError("spec of the pod is missing, or no object")
    patch: list[dict[str, Any]] = []
    changed: dict[str, list[Any]] = {}
    for path, container, _ in containers_of(spec):
        kind, index = path.removeprefix("spec.").rstrip("]").split("[")
        resources = _changed_resources(container, path, spellings)
        if resources is not None:
            listed = changed.setdefault(kind, list(spec[kind]))
            listed[int(index)] = {**container, "resources": resources}
            verb = "replace" if "resources" in container else "add"
            where = f"/spec/{kind}/{index}/resources"
            patch.append({"op": verb, "path": where, "value": resources})
    for _ in wants_of({**spec, **changed}):  # what is wrong with it now is wrong for good
        pass
    return patch


def _changed_resources(
    container: Mapping[str, Any], path: str, spellings: Sequence[Spelling]
) -> dict[str, Any] | None:
    """A container's resources as they are to be; None: as they are."""
    limits = limits_of(container, path)
    translated = translate(container, path, tuple(spellings))
    added: dict[str, Any] = {}
    taken: frozenset[str] = frozenset()
    if translated is not None:
        added = {name: str(number) for name, number in translated.limits.items()}
        taken = translated.taken
    if VGPU not in limits and VGPU not in added and any(name in limits for name in OWN):
        added[VGPU] = "1"
    if not added and not taken:
        return None
    found = dict(container.get("resources") or {})
    for kind in ("limits", "requests"):  # of an extended resource they are the same
        kept = {k: v for k, v in (found.get(kind) or {}).items() if k not in taken}
        if kind == "limits" or kept or found.get(kind):
            kept |= added
        if kept or kind in found:
            found[kind] = kept
    return found
