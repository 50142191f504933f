# SPDX-License-Identifier: Apache-2.0
"""The chart as Helm renders it, and the pods that its objects make.

Used by the tests of the chart.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

import yaml

from tests.rigs.kubernetes.rig import CHECKOUT, PROGRAMS

CHART = CHECKOUT / "kubernetes" / "chart"


def rendered(**values: Any) -> list[dict[str, Any]]:
    """The objects; a value is named with `__` for each dot. Raises ValueError."""
    words = [str(PROGRAMS / "helm"), "template", "sluice", str(CHART)]
    for name, value in values.items():
        words += ["--set-json", f"{name.replace('__', '.')}={json.dumps(value)}"]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise ValueError(ran.stderr)
    return [each for each in yaml.safe_load_all(ran.stdout) if each]


def pod_of(found: dict[str, Any]) -> dict[str, Any] | None:
    """The pod that an object makes, as one of its own."""
    template = found.get("spec", {}).get("template")
    if not isinstance(template, dict):
        return None
    metadata = {
        **template["metadata"],
        "name": f"tried-{found['metadata']['name']}",
        "namespace": found["metadata"]["namespace"],
    }
    pod = dict(template["spec"])
    for claim in found["spec"].get("volumeClaimTemplates", []):
        volume = {"name": claim["metadata"]["name"], "emptyDir": {}}
        pod["volumes"] = [*pod["volumes"], volume]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod}
