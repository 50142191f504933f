# SPDX-License-Identifier: Apache-2.0
"""What notifications say of instances; whatever else arrives is passed over."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("oslo_messaging")

from sluice.nova_driver.notifications import server_of

UUID = "1111AAAA-2222-3333-4444-555555555555"


@pytest.mark.parametrize(
    ("event", "payload", "server"),
    [
        ("instance.create.end", {"nova_object.data": {"uuid": UUID}}, UUID.lower()),
        ("compute_task.build_instances.error", {"nova_object.data": {"instance_uuid": UUID}},
         UUID.lower()),
        ("service.update", {"nova_object.data": {"uuid": UUID}}, None),
        ("instance.update", {"nova_object.data": {"uuid": 7}}, None),
        ("instance.update", {"nova_object.data": {"uuid": "x" * 65}}, None),
        ("instance.update", {"nova_object.data": []}, None),
        ("instance.update", ["no", "object"], None),
        ("instance.update", None, None),
    ],
)  # fmt: skip
def test_which_instance(event: str, payload: Any, server: str | None) -> None:
    assert server_of(event, payload) == server
