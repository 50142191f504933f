# SPDX-License-Identifier: Apache-2.0
"""The `openstack` client's plugin where the pool has several controllers, and wants tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import etcd_members
import pytest
from controllers import controllers

if TYPE_CHECKING:
    from tests.rigs.openstack.rig import OpenStackRig

pytestmark = [pytest.mark.openstack, pytest.mark.slow]


def test_whoever_is_named_the_leader_answers(
    rig: OpenStackRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with etcd_members.etcd_members(tmp_path / "etcd") as members:
        store = {"kind": "etcd", "endpoints": members.endpoints[0]}
        with controllers(tmp_path, 2, store, auth={"required": "yes"}) as pair:
            follower = pair.rest[pair.both()[1]]
            words = ("vgpu", "quota", "--os-vgpu-controller", f"127.0.0.1:1,{follower}")
            with pytest.raises(RuntimeError, match="token"):
                rig.openstack(*words)
            monkeypatch.setenv("SLUICE_TOKEN", pair.first_token())
            assert rig.openstack(*words)["memory_mib"] == "unlimited"
