# SPDX-License-Identifier: Apache-2.0
"""Our own container images have what the manifests ask of them."""

from __future__ import annotations

from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def test_the_controllers_image_has_the_client_of_etcd() -> None:
    """It is an extra of the package, and three controllers end at once without it."""
    manifest = CHECKOUT / "kubernetes" / "manifests" / "pool-etcd.yaml"
    assert "kind = etcd" in manifest.read_text()
    recipe = (CHECKOUT / "packaging" / "containers" / "controller.Containerfile").read_text()
    assert "requirements.py /src/pyproject.toml etcd >" in recipe
