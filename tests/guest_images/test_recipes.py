# SPDX-License-Identifier: Apache-2.0
"""The recipes for images: real cloud-init, Ansible and ansible-lint; virt-customize's commands by
their meaning."""

from __future__ import annotations

import hashlib
import http.server
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from control_plane import ControlPlane

from .conftest import CHECKOUT, ROOTS, Packages
from .program import SAYS
from .root import Root

IMAGES = CHECKOUT / "packaging" / "images"
ROLE = CHECKOUT / "packaging" / "ansible"
#: Only the parts that the user data uses: no network, accounts or disks of this machine.
CLOUD = """\
datasource_list: [NoCloud, None]
network: {config: disabled}
cloud_init_modules: [write_files]
cloud_config_modules: [runcmd]
cloud_final_modules: [package_update_upgrade_install, scripts_user]
system_info: {distro: debian, paths: {cloud_dir: /var/lib/cloud}}
"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def web(packages: Packages) -> Iterator[str]:
    """A web server with the packages."""
    handler = partial(_Quiet, directory=str(packages.deb.parent))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("recipe", sorted(IMAGES.glob("cloud-init-*.yaml")), ids=lambda p: p.name)
def test_the_user_data_is_what_cloud_init_takes(debian: Root, recipe: Path) -> None:
    debian.put(recipe, "/root/user-data")
    said = debian.check("cloud-init schema --config-file /root/user-data 2>&1")
    assert "Valid" in said, said
    debian.path("/root/user-data").write_text(
        recipe.read_text().replace("runcmd:", "runcmd: 7\nx:")
    )
    assert debian.run("cloud-init schema --config-file /root/user-data").returncode != 0


@pytest.mark.parametrize("right", [True, False])
def test_cloud_init_installs_it(
    debian: Root, packages: Packages, plane: ControlPlane, web: str, right: bool
) -> None:
    text = (IMAGES / "cloud-init-debian.yaml").read_text()
    digest = hashlib.sha256(packages.deb.read_bytes()).hexdigest()
    text = re.sub(r"url=http://files.example/\S+", f"url={web}/{packages.deb.name}", text)
    if right:
        text = re.sub(r"digest=0+", f"digest={digest}", text)
    seed = debian.path("/var/lib/cloud/seed/nocloud")
    seed.mkdir(parents=True)
    (seed / "user-data").write_text(text)
    (seed / "meta-data").write_text("instance-id: i-1\n")
    debian.path("/etc/cloud/cloud.cfg").write_text(CLOUD)
    shutil.rmtree(debian.path("/etc/cloud/cloud.cfg.d"))
    stages = ["init --local", "init", "modules --mode=config", "modules --mode=final"]
    # what cloud-init keeps below /run, one boot long
    debian.path("/boot-run").mkdir()
    debian.mounts["/run"] = debian.path("/boot-run")
    done = debian.run(" && ".join(f"cloud-init {stage}" for stage in stages) + " 2>&1")
    log = debian.path("/var/log/cloud-init-output.log")
    said = done.stdout + (log.read_text() if log.exists() else "")
    assert debian.path("/opt/sluice/bin/sluice").exists() == right, said
    if not right:
        assert "computed checksum did NOT match" in said
        return
    del debian.mounts["/run"]
    controller = f"127.0.0.1:{plane.rest_port}"
    assert debian.check("/add", SLUICE_CONTROLLER=controller, SLUICE_GMEM="64").strip() == SAYS


def test_the_virt_customize_recipe(debian: Root, packages: Packages, plane: ControlPlane) -> None:
    """Its commands do in a root what virt-customize does in an image that it has started."""
    recipe = (IMAGES / "virt-customize-debian.commands").read_text()
    ran = 0
    for line in recipe.splitlines():
        if not line or line.startswith("#"):
            continue
        verb, _, rest = line.partition(" ")
        if verb == "copy-in":
            source, _, folder = rest.partition(":")
            assert source == "sluice-guest.deb"  # as the recipe's head tells to name it
            debian.put(packages.deb, f"{folder}/{source}")
        elif verb == "run-command":
            debian.check(rest)
        elif verb == "delete":
            debian.path(rest).unlink()
        else:
            pytest.fail(f"{verb} is not known to this test")
        ran += 1
    assert ran >= 3
    assert not list(debian.path("/tmp").glob("*.deb"))
    controller = f"127.0.0.1:{plane.rest_port}"
    assert debian.check("/add", SLUICE_CONTROLLER=controller, SLUICE_GMEM="64").strip() == SAYS


def play(root: Root, more: str = "") -> dict[str, int]:
    """Runs the playbook in the root; returns the counts of its recap."""
    command = "ansible-playbook -i localhost, -c local playbook.yml -e @/root/variables.yml"
    root.mounts["/ansible"] = ROLE
    said = root.check(f"cd /ansible && {command} {more} 2>&1", ANSIBLE_NOCOLOR="1")
    recap = re.search(r"^localhost +: (.*)$", said, re.MULTILINE)
    assert recap, said
    counts = {k: int(v) for k, v in re.findall(r"(\w+)=(\d+)", recap[1])}
    assert (counts["failed"], counts["unreachable"]) == (0, 0), said
    return counts


def test_the_role_installs_enrols_checks_and_is_idempotent(
    debian: Root, packages: Packages, plane: ControlPlane
) -> None:
    reservation = {"owner_kind": "vm", "owner": "5026a1b2-0000-4000-8000-00000000000c"}
    reservation |= {"project": "amber"}
    figures = {"memory_mib": 64, "compute_percent": 5}
    held = plane.rest.post("/reservations", json={**reservation, **figures})
    assert held.status_code == 201, held.text
    made = plane.rest.post("/enrolments", json={"reservation": held.json()["id"]})
    assert made.status_code == 201, made.text
    debian.put(packages.deb, f"/root/{packages.deb.name}")
    debian.check("useradd -m alice")
    debian.path("/root/variables.yml").write_text(
        f"sluice_guest_package: /root/{packages.deb.name}\n"
        f"sluice_guest_controller: 127.0.0.1:{plane.rest_port}\n"
        f"sluice_guest_enrolment: {made.json()['secret']}\n"
        "sluice_guest_settings: {gmem: 64, wait: 20, preempt: false}\n"
        "sluice_guest_users: [alice]\n"
        "sluice_guest_loader: 'on'\n"
    )
    before = debian.files()
    assert play(debian, "--check")["changed"] >= 1
    assert before == debian.files() or not debian.path("/opt/sluice").exists()
    assert not debian.path("/opt/sluice").exists()
    assert play(debian)["changed"] >= 5
    token = debian.path("/etc/sluice/token")
    assert oct(token.stat().st_mode & 0o777) == "0o640"
    assert play(debian)["changed"] == 0
    assert play(debian, "--check")["changed"] == 0
    said = debian.check("su alice -c '/add'")
    assert said.strip() == SAYS
    plane.rest.delete(f"/reservations/{held.json()['id']}")


def test_ansible_lint_and_the_newest_ansible_have_nothing_to_say() -> None:
    programs = ROOTS / "venv" / "bin"
    lint = [programs / "ansible-lint", "-q", "--offline", "--nocolor", "."]
    path = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": "/nonexistent", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(lint, cwd=ROLE, env=path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    check = [programs / "ansible-playbook", "--syntax-check", "-i", "localhost,", "playbook.yml"]
    done = subprocess.run(check, cwd=ROLE, env=path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
