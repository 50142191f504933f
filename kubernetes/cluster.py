# SPDX-License-Identifier: Apache-2.0
"""The cluster's API, as much as is needed: what is read, watched and written, as JSON.

Used by node_plugin.py and publishing.py, over the asynchronous part of the `kubernetes` client,
which knows service accounts, kubeconfig files and tokens that are renewed. Objects stay JSON: what
a newer API server adds is kept, and what an older one drops is seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
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

    async def pod_priority_class(self, namespace: str, name: str) -> str:
        """The priority class of a pod, "" where it has none or is gone."""
        try:
            pod = await self._told(self._core.read_namespaced_pod(name, namespace))
        except ClusterError as error:
            if error.is_not_found:
                return ""
            raise
        return str((pod.get("spec") or {}).get("priorityClassName") or "")

    async def follow_claims(self, version: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """ResourceClaims since a list's version: ADDED, MODIFIED or DELETED, and the claim.

        Ends when the API server ends the watch, as it does after a while.
        """
        watching = watch.Watch()
        try:
            async for event in watching.stream(
                self._objects.list_cluster_custom_object,
                *(GROUP, VERSION, "resourceclaims"),
                resource_version=version,
                timeout_seconds=WATCH_SECONDS,
            ):
                yield event["type"], event["raw_object"]
        except ApiException as error:
            raise ClusterError(f"{error.status} {error.reason}", error.status) from None
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise ClusterError(f"the claims are not followed: {error or 'no answer'}") from None
        finally:
            await watching.close()

    async def _every(self, plural: str, **options: Any) -> tuple[list[dict[str, Any]], str]:
        found: list[dict[str, Any]] = []
        more = ""
        while True:
            if more:
                options["_continue"] = more
            listed = await self._told(
                self._objects.list_cluster_custom_object(
                    GROUP, VERSION, plural, limit=PAGE, **options
                )
            )
            found += listed["items"]
            metadata = listed.get("metadata") or {}
            more = metadata.get("continue") or ""
            if not more:
                return found, str(metadata.get("resourceVersion") or "")

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
