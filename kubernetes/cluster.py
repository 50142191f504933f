# SPDX-License-Identifier: Apache-2.0
"""The cluster's API, as much as is needed: what is read, watched and written, as JSON.

Used by every part, over the asynchronous half of the `kubernetes` client, which knows service
accounts, kubeconfig files and tokens that are renewed. Objects stay JSON: what a newer API server
adds is kept, and what an older one drops is seen.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
from kubernetes.aio import client, config, watch
from kubernetes.aio.client.exceptions import ApiException

GROUP, VERSION = "resource.k8s.io", "v1"
ANSWER_SECONDS = 15.0
WATCH_SECONDS = 300
PAGE = 500
NOT_FOUND, CONFLICT = 404, 409


class ClusterError(Exception):
    """The cluster did not do what it was asked; the text says why."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status

    @property
    def is_not_found(self) -> bool:
        """Whether there is no such object."""
        return self.status == NOT_FOUND


class Cluster:
    """One cluster. Every method raises ClusterError."""

    def __init__(self, settings: client.Configuration) -> None:
        self._client = client.ApiClient(configuration=settings)
        self._objects = client.CustomObjectsApi(self._client)
        self._core = client.CoreV1Api(self._client)

    @classmethod
    async def connect(cls, kubeconfig: Path | None) -> Cluster:
        """By a kubeconfig file, else by the pod's service account."""
        settings = client.Configuration()
        try:
            if kubeconfig:
                await config.load_kube_config(str(kubeconfig), client_configuration=settings)
            else:
                config.load_incluster_config(client_configuration=settings)
        except (config.ConfigException, OSError) as error:
            what = kubeconfig or "the pod's service account"
            raise ClusterError(f"{what}: {error}; set [kubernetes] kubeconfig") from None
        return cls(settings)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.close()

    async def claim(self, namespace: str, name: str) -> dict[str, Any]:
        """A ResourceClaim."""
        return await self._told(
            self._objects.get_namespaced_custom_object(
                GROUP, VERSION, namespace, "resourceclaims", name
            )
        )

    async def claims(self) -> tuple[dict[str, dict[str, Any]], str]:
        """Every ResourceClaim, by UID, and the version of the list, to follow them from."""
        found, version = await self._every("resourceclaims")
        return {each["metadata"]["uid"]: each for each in found}, version

    async def slices(self, driver: str) -> list[dict[str, Any]]:
        """The ResourceSlices of a driver."""
        found, _ = await self._every("resourceslices", field_selector=f"spec.driver={driver}")
        return found

    async def make_slice(self, body: dict[str, Any]) -> dict[str, Any]:
        """A new ResourceSlice, as it was stored."""
        return await self._told(
            self._objects.create_cluster_custom_object(GROUP, VERSION, "resourceslices", body)
        )

    async def put_slice(self, body: dict[str, Any]) -> dict[str, Any]:
        """A ResourceSlice in the place of the one of its name and version, as it was stored."""
        name = body["metadata"]["name"]
        return await self._told(
            self._objects.replace_cluster_custom_object(
                GROUP, VERSION, "resourceslices", name, body
            )
        )

    async def delete_slice(self, name: str) -> None:
        """One that is gone already is as good."""
        try:
            await self._told(
                self._objects.delete_cluster_custom_object(GROUP, VERSION, "resourceslices", name)
            )
        except ClusterError as error:
            if not error.is_not_found:
                raise

    async def pod(self, namespace: str, name: str) -> dict[str, Any]:
        """A pod."""
        return await self._told(self._core.read_namespaced_pod(name, namespace))

    async def pods(self) -> tuple[dict[str, dict[str, Any]], str]:
        """Every pod, by UID, and the version of the list, to follow them from."""

        async def listing(**options: Any) -> dict[str, Any]:
            query = [(name.lstrip("_"), value) for name, value in options.items()]
            return await self._asked("GET", "/api/v1/pods", query=query)

        found, version = await self._pages(listing)
        return {each["metadata"]["uid"]: each for each in found}, version

    async def unplaced_pods(self) -> list[dict[str, Any]]:
        """Pods that no node has yet."""
        pending = ("fieldSelector", "spec.nodeName=,status.phase=Pending")

        async def listing(**options: Any) -> dict[str, Any]:
            query = [(name.lstrip("_"), value) for name, value in options.items()]
            return await self._asked("GET", "/api/v1/pods", query=[pending, *query])

        found, _ = await self._pages(listing)
        return found

    async def classes(self) -> list[dict[str, Any]]:
        """The DeviceClasses."""
        found, _ = await self._every("deviceclasses")
        return found

    async def make_event(self, body: Mapping[str, Any]) -> None:
        """An Event (v1) in the namespace that it names."""
        place = {"namespace": str(body["metadata"]["namespace"])}
        path = "/api/v1/namespaces/{namespace}/events"
        await self._told(self._asked("POST", path, place, body))

    async def nodes(self) -> tuple[list[dict[str, Any]], str]:
        """Every node, and the version of the list, to follow them from."""

        async def listing(**options: Any) -> dict[str, Any]:
            query = [(name.lstrip("_"), value) for name, value in options.items()]
            return await self._asked("GET", "/api/v1/nodes", query=query)

        return await self._pages(listing)

    async def follow_nodes(self, version: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """As `follow_pods`."""
        async for event in self._follow(self._core.list_node, version):
            yield event

    async def bind(self, namespace: str, name: str, uid: str, node: str) -> None:
        """Has a pod run on a node."""
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"namespace": namespace, "name": name, "uid": uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        place = {"namespace": namespace, "name": name}
        await self._told(
            self._asked("POST", "/api/v1/namespaces/{namespace}/pods/{name}/binding", place, body)
        )

    async def annotate_pod(self, namespace: str, name: str, key: str, text: str) -> None:
        """Says something in an annotation of a pod."""
        body = {"metadata": {"annotations": {key: text}}}
        place = {"namespace": namespace, "name": name}
        await self._told(
            self._asked("PATCH", "/api/v1/namespaces/{namespace}/pods/{name}", place, body)
        )

    async def pod_priority_class(self, namespace: str, name: str) -> str:
        """The priority class of a pod, "" where it has none or is gone."""
        try:
            pod = await self.pod(namespace, name)
        except ClusterError as error:
            if error.is_not_found:
                return ""
            raise
        return str((pod.get("spec") or {}).get("priorityClassName") or "")

    async def follow_claims(self, version: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """ResourceClaims since a list's version: ADDED, MODIFIED or DELETED, and the claim.

        Ends when the API server ends the watch, as it does after a while.
        """
        listing = self._objects.list_cluster_custom_object
        async for event in self._follow(listing, version, GROUP, VERSION, "resourceclaims"):
            yield event

    async def follow_pods(self, version: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """The same for pods."""
        async for event in self._follow(self._core.list_pod_for_all_namespaces, version):
            yield event

    async def _follow(
        self, listing: Any, version: str, *words: str
    ) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        watching = watch.Watch(return_type="object")
        try:
            async for event in watching.stream(
                listing, *words, resource_version=version, timeout_seconds=WATCH_SECONDS
            ):
                yield event["type"], event["raw_object"]
        except ApiException as error:
            raise ClusterError(f"{error.status} {error.reason}", error.status) from None
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise ClusterError(f"a watch has ended: {error or 'no answer'}") from None
        finally:
            await watching.close()

    async def _every(self, plural: str, **options: Any) -> tuple[list[dict[str, Any]], str]:
        listing = self._objects.list_cluster_custom_object
        return await self._pages(listing, GROUP, VERSION, plural, **options)

    async def _pages(
        self, listing: Any, *words: str, **options: Any
    ) -> tuple[list[dict[str, Any]], str]:
        found: list[dict[str, Any]] = []
        more = ""
        while True:
            if more:
                options["_continue"] = more
            listed = await self._told(listing(*words, limit=PAGE, **options))
            found += listed["items"]
            metadata = listed.get("metadata") or {}
            more = metadata.get("continue") or ""
            if not more:
                return found, str(metadata.get("resourceVersion") or "")

    async def _asked(
        self,
        method: str,
        path: str,
        place: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        query: Sequence[tuple[str, Any]] = (),
    ) -> dict[str, Any]:
        """JSON as it is: the client's own methods make models of it, which lose or refuse parts."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        words = await self._client.param_serialize(
            *(method, path, dict(place or {}), list(query)),
            {"Accept": "application/json", "Content-Type": kind},
            body,
            auth_settings=["BearerToken"],
        )
        answer = await self._client.call_api(*words)
        text = await answer.read()
        if not 200 <= answer.status <= 299:
            reason = answer.reason
            raise ApiException(answer.status, reason, text.decode(errors="replace"))
        found: dict[str, Any] = json.loads(text)
        return found

    async def _told(self, call: Any) -> dict[str, Any]:
        try:
            answer = await asyncio.wait_for(call, ANSWER_SECONDS)
        except ApiException as error:
            raise ClusterError(
                f"{error.status} {error.reason}: {error.body}", error.status
            ) from None
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ClusterError(f"the API server does not answer: {error or 'too late'}") from None
        if isinstance(answer, dict):
            return answer
        plain: dict[str, Any] = self._client.sanitize_for_serialization(answer)
        return plain
