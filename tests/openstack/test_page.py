# SPDX-License-Identifier: Apache-2.0
"""docs/openstack.md can be followed from nothing to a CUDA program in an instance.

Its commands run as they stand there, in their order, against the rig's OpenStack, whose Nova has
been told nothing of Sluice before.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from control_plane import wait_for
from cuda_compiler import compiler_environment
from fresh_machine import FreshMachine
from walkthrough import Instead, Walkthrough

from .conftest import CHECKOUT, LISTENING, make_image, remove_images

if TYPE_CHECKING:
    from tests.rigs.openstack.rig import OpenStackRig

    from .conftest import Adapter, Pool

pytestmark = [pytest.mark.openstack, pytest.mark.slow]

CLOUDS = """\
clouds:
  rig:
    auth: {{auth_url: "{OS_AUTH_URL}", username: admin, password: "{OS_PASSWORD}",
           project_name: admin, user_domain_name: Default, project_domain_name: Default}}
    region_name: "{OS_REGION_NAME}"
"""
CHECK = "OS_CLIENT_CONFIG_FILE=/etc/sluice/clouds.yaml sluice openstack check"
CUSTOMIZE = (
    'virt-customize -a "$IMAGE" --copy-in vector_add:/usr/local/bin \\\n'
    '  --copy-in "$(echo "$SOURCE"/dist/sluice-guest_*_amd64.deb):/tmp" '
    '--run-command "dpkg -i /tmp/sluice-guest_*.deb"'
)
UPLOAD = 'openstack --os-cloud "$CLOUD" image create --disk-format qcow2 --file "$IMAGE" gpu-image'


@pytest.fixture
def nova_untold(rig: OpenStackRig, adapter: Adapter) -> Iterator[None]:
    """Nova's configuration has nothing of Sluice, and no adapter runs but the page's."""
    adapter.stop()
    before = rig.settings
    rig.settings = replace(
        before, compute_driver="libvirt.LibvirtDriver", server_socket="", notifications=False
    )
    rig.configure()
    try:
        yield
    finally:
        rig.settings = before
        rig.configure()
        adapter.start()


@pytest.fixture
def machine(rig: OpenStackRig, pool: Pool, nova_untold: None) -> Iterator[FreshMachine]:
    """The controller's host with Sluice's commands, and with the client and Nova's environment."""
    compiler = compiler_environment()
    made = FreshMachine(
        environment=compiler
        | {
            "PATH": f"{compiler['PATH']}:{rig.venv / 'bin'}",
            "PYTHONWARNINGS": "ignore",
            # the wheel is built with what the rig has installed
            "PIP_NO_BUILD_ISOLATION": "0",
        }
    )
    try:
        commands = shlex.quote(str(CHECKOUT / "build/bin"))
        made.run(f"mkdir -p /opt/sluice-venv/bin; ln -s {commands}/* /opt/sluice-venv/bin/", {})
        made.run("ln -s /opt/sluice-venv/bin/sluice /usr/local/bin/sluice", {})
        files = {
            ".sluice/token": pool.first_token(),
            ".config/openstack/clouds.yaml": CLOUDS.format(**rig.credentials()),
        }
        for name, text in files.items():
            path = made.home / name
            path.parent.mkdir(parents=True)
            path.touch(0o600)
            path.write_text(text)
        yield made
    finally:
        made.close()


@pytest.fixture
def leftovers(cloud: Any) -> Iterator[None]:
    """What the page makes in the cloud is not there before it, and goes after it."""

    def remove() -> None:
        for server in cloud.compute.servers(name="^job1$"):
            cloud.compute.delete_server(server)
            cloud.compute.wait_for_delete(server, interval=0.5, wait=60)
        if found := cloud.compute.find_flavor("gpu.small"):
            cloud.compute.delete_flavor(found)
        for begin in ("gpu-image", "rig-gpu-image"):
            remove_images(cloud, begin)

    remove()
    yield
    remove()


def test_openstacks_page(
    machine: FreshMachine, rig: OpenStackRig, pool: Pool, cloud: Any, leftovers: None
) -> None:
    def start_adapter() -> str:
        machine.start_units("sluice-openstack")
        wait_for(
            lambda: LISTENING.decode() in machine.journal("sluice-openstack"),
            message=lambda: f"the adapter to listen: {machine.journal('sluice-openstack')}",
        )

        def is_quiet() -> bool:
            try:
                return bool(machine.run(CHECK, {}))
            except RuntimeError:
                return False

        wait_for(is_quiet, message="a quiet `sluice openstack check`")
        return ""

    def restart_nova() -> str:
        rig.restart_services("nova-api", "nova-compute")
        rig.await_computes(1)
        return ""

    def upload() -> str:
        make_image(rig, cloud, "gpu-image", program=machine.home / "vector_add")
        return ""

    instead = {
        '/opt/sluice-venv/bin/pip install "$SOURCE[openstack]"': Instead(
            "compiling the wheel takes ten minutes; the checkout's command has the adapter",
            "/opt/sluice-venv/bin/sluice openstack --help",
        ),
        "systemctl enable --now sluice-openstack": Instead(
            "there is no systemd; the unit's command runs, as its user", start_adapter
        ),
        "systemctl restart nova-api nova-compute": Instead(
            "there is no systemd; the rig starts both anew with the file as it is", restart_nova
        ),
        'make -C "$SOURCE" guest-bundle guest-packages': Instead(
            "`make test-openstack` has just made the bundle, and `make test-guest-images` makes "
            "packages of it",
            'test -s "$SOURCE/dist/sluice-guest-x86_64.tar.gz"',
        ),
        CUSTOMIZE: Instead(
            "without KVM an instance boots from an initramfs, which has the bundle's files, and "
            "which does itself what cloud-init would do with job.sh; the deb is put into a root "
            "of Debian by `make test-guest-images`",
            "test -x vector_add",
        ),
        UPLOAD: Instead("that initramfs with the program that the page has compiled", upload),
    }
    page = Walkthrough(CHECKOUT / "docs/openstack.md", "From nothing to a CUDA program in a VM")
    credentials = rig.credentials()
    printed = page.follow(
        dict.fromkeys(("controller", "nova", "client"), machine.run),
        {
            "SOURCE": str(CHECKOUT),
            "CONTROLLER": f"127.0.0.1:{pool.rest_port}",
            "RUN_DIR": str(pool.folder / "run"),
            "CLOUD": "rig",
            "AUTH_URL": credentials["OS_AUTH_URL"],
            "REGION": credentials["OS_REGION_NAME"],
            "PASSWORD": "page",
            "TRANSPORT": rig.transport_url,
            "NOVA": str(rig.venv),
            "NOVA_CONF": str(rig.etc / "nova/nova.conf"),
            "IMAGE": "not used: see virt-customize",
            "NIC": "none",
        },
        instead,
    )
    assert "job1" in printed[-1]
    wait_for(lambda: not held(pool), message="all to be given back")


def held(pool: Pool) -> list[dict[str, Any]]:
    found = pool.rest.get("/reservations").json()["reservations"]
    return [each for each in found if each["state"] == "held"]
