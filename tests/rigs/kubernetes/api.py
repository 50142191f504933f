# SPDX-License-Identifier: Apache-2.0
"""The rig's API server over one connection: objects, logs and rights are read, objects made.

Used by rig.py: tests look at the same objects again and again until something has come of them, and
a kubectl for each look would keep one of two cores busy.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

NAMESPACED = {
    "pod": "/api/v1",
    "event": "/api/v1",
    "serviceaccount": "/api/v1",
    "resourcequota": "/api/v1",
    "job": "/apis/batch/v1",
    "resourceclaim": "/apis/resource.k8s.io/v1",
    "resourceclaimtemplate": "/apis/resource.k8s.io/v1",
}
CLUSTERED = {"node": "/api/v1", "resourceslice": "/apis/resource.k8s.io/v1"}
_OPTIONS = {"--field-selector": "fieldSelector", "-l": "labelSelector"}


class NotDone(Exception):
    """It is not there, or the API server refuses or does not answer; the text says which."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status  # HTTP's, 0 without an answer


class Api:
    """Of one API server."""

    def __init__(self, url: str, ca_file: str, token: str) -> None:
        self._client = httpx.Client(
            base_url=url,
            verify=ssl.create_default_context(cafile=ca_file),
            headers={"Authorization": f"Bearer {token}"},
            trust_env=False,
            timeout=60,
        )

    def get(self, *words: str) -> Any:
        """As `kubectl get WORDS -o json` has it; raises NotDone."""
        kinds, name, namespace, query = _read(words)
        found = [self._of(kind, name, namespace, query).json() for kind in kinds]
        if len(found) == 1:
            return found[0]
        return {"items": [item for each in found for item in each["items"]]}

    def log(self, pod: str, container: str) -> str:
        """What a container has said up to now; raises NotDone."""
        path = f"/api/v1/namespaces/default/pods/{pod}/log"
        return self._answer("GET", path, params={"container": container}).text

    def is_ready(self) -> bool:
        """Whether the API server says that it is."""
        try:
            return self._answer("GET", "/readyz").status_code == 200
        except NotDone:
            return False

    def as_it_would_be(self, pod: Mapping[str, Any]) -> Any:
        """A pod as the API server would store it; raises NotDone where it would refuse it."""
        path = "/api/v1/namespaces/default/pods"
        return self._answer("POST", path, params={"dryRun": "All"}, json=dict(pod)).json()

    def create(self, made: Mapping[str, Any]) -> bool:
        """An object in its namespace; False where it is there. Raises NotDone where it is refused.

        Those of kinds that are not known here are not made either.
        """
        kind, metadata = made["kind"].lower(), made["metadata"]
        if NAMESPACED.get(kind) != _group_path(made["apiVersion"]):
            return False
        path = f"{NAMESPACED[kind]}/namespaces/{metadata.get('namespace', 'default')}/{kind}s"
        try:
            self._answer("POST", path, json=dict(made))
        except NotDone as error:
            if error.status != 409 or "AlreadyExists" not in str(error):
                raise
            return False
        return True

    def delete_all(self, kind: str, grace_seconds: int) -> None:
        """Of a kind in the default namespace, without waiting for their end; raises NotDone."""
        query = {"gracePeriodSeconds": grace_seconds, "propagationPolicy": "Background"}
        self._answer("DELETE", f"{NAMESPACED[kind]}/namespaces/default/{kind}s", params=query)

    def may(self, account: str, attributes: Mapping[str, str]) -> bool:
        """Whether a service account (NAMESPACE:NAME) has a right everywhere; raises NotDone."""
        namespace = account.partition(":")[0]
        user = f"system:serviceaccount:{account}"
        accounts = "system:serviceaccounts"
        groups = [accounts, f"{accounts}:{namespace}", "system:authenticated"]
        kind = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"}
        spec = {"user": user, "groups": groups, "resourceAttributes": dict(attributes)}
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        said = self._answer("POST", path, json={**kind, "spec": spec}).json()
        return bool(said["status"]["allowed"])

    def _of(self, kind: str, name: str, namespace: str, query: dict[str, str]) -> httpx.Response:
        singular = kind.removesuffix("s")
        if singular in CLUSTERED:
            path = f"{CLUSTERED[singular]}/{singular}s"
        elif singular in NAMESPACED:
            path = f"{NAMESPACED[singular]}/namespaces/{namespace}/{singular}s"
        else:
            raise NotDone(f"{kind} is not known here: add where its API is")
        return self._answer("GET", f"{path}/{name}" if name else path, params=query)

    def _answer(self, method: str, path: str, **sent: Any) -> httpx.Response:
        try:
            answer = self._client.request(method, path, **sent)
        except httpx.HTTPError as error:
            raise NotDone(f"{path}: {error!r}") from None
        if answer.status_code not in (200, 201):
            text = f"{path}: {answer.status_code} {answer.text[:2000]}"
            raise NotDone(text, answer.status_code)
        return answer


def _group_path(api_version: str) -> str:
    """Where an API is."""
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


def _read(words: Sequence[str]) -> tuple[list[str], str, str, dict[str, str]]:
    namespace, query, plain = "default", {}, []
    rest = iter(words)
    for word in rest:
        if word == "-n":
            namespace = next(rest)
        elif word in _OPTIONS:
            query[_OPTIONS[word]] = next(rest)
        else:
            plain.append(word)
    [kinds, *name] = plain
    return kinds.split(","), name[0] if name else "", namespace, query
