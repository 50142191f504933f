# SPDX-License-Identifier: Apache-2.0
"""Makes the keys and certificates of the rig's control plane.

Used by rig.py. Every certificate is signed by an authority of the rig's own.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

_NAMES = "IP:127.0.0.1,IP:10.96.0.1,DNS:localhost,DNS:kubernetes.default.svc"


def make_keys(folder: Path) -> None:
    """The authority, the API server, what it shows kubelets, and the service accounts' key."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], check=True, capture_output=True, cwd=folder)

    def key(name: str) -> None:
        openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{name}.key")

    def certificate(name: str, subject: str, extension: str) -> None:
        key(name)
        openssl("req", "-new", "-key", f"{name}.key", "-subj", subject, "-out", f"{name}.csr")
        (folder / f"{name}.ext").write_text(extension)
        openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key"),
            *("-CAcreateserial", "-days", "30", "-extfile", f"{name}.ext"),
            *("-out", f"{name}.crt"),
        )

    key("ca")
    openssl(
        *("req", "-x509", "-new", "-key", "ca.key", "-subj", "/CN=rig-ca", "-days", "30"),
        *("-out", "ca.crt"),
    )
    certificate("apiserver", "/CN=kube-apiserver", f"subjectAltName={_NAMES}")
    kubelets = "/O=system:masters/CN=kube-apiserver"
    certificate("kubelet-client", kubelets, "extendedKeyUsage=clientAuth")
    openssl("genrsa", "-out", "sa.key", "2048")
