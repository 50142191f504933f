# SPDX-License-Identifier: Apache-2.0
"""Nova's libvirt driver, whose instances with `vgpu:` extra specs have a channel to the pool.

Loaded by nova-compute with `compute_driver = sluice.LibvirtDriver` (nova_hook.py makes the name).
It writes what an instance asks for into the metadata of the definition, has the server put the
channel's device in between Nova's define and its start, and take it out of a guest that is to be
suspended (docs/decisions/0004-nova-writes-metadata.md). No device of a guest is touched here, and
no grant is made or freed, as Nova destroys and defines an instance anew for reasons of its own (a
hard reboot, a rescue, a resize). Signatures of Nova's methods differ between releases, so arguments
pass through as they come.
"""

from __future__ import annotations

from typing import Any

import nova.conf
from lxml import etree
from nova import exception
from nova.virt.libvirt import config as guest_config
from nova.virt.libvirt import driver as libvirt_driver
from oslo_log import log as logging

from . import options
from .extra_specs import InvalidSpecs, VgpuSpecs, parse
from .server_line import (
    ServerRefused,
    make_ready,
    plug_channel,
    prepare_channel,
    programs_using,
    unplug_channel,
)

LOG = logging.getLogger(__name__)
CONF = nova.conf.CONF
options.register(CONF)

CHANNEL_TRAIT = "CUSTOM_SLUICE_CHANNEL"
#: How a request and its devices are known in a definition (hypervisor/domain_document.py).
_REQUEST = "metadata/{https://sluice.dev/xmlns/libvirt/1}*"
_REGION_PREFIX = "sluice-"
_VSOCK = "devices/vsock/alias[@name='ua-sluice-vsock']"


class _Element(guest_config.LibvirtConfigGuestDevice):  # type: ignore[misc]
    """A piece of the definition that sluice-server has written."""

    def __init__(self, xml: str) -> None:
        self._element = etree.fromstring(xml)
        super().__init__(root_name=self._element.tag)

    def format_dom(self) -> Any:
        # a copy: Nova moves it into a document of its own
        return etree.fromstring(etree.tostring(self._element))


class LibvirtDriver(libvirt_driver.LibvirtDriver):  # type: ignore[misc]
    """Nova's driver with channels."""

    def update_provider_tree(
        self, provider_tree: Any, nodename: str, *args: Any, **kwargs: Any
    ) -> None:
        """Tells the scheduler besides that this host gives instances a channel."""
        super().update_provider_tree(provider_tree, nodename, *args, **kwargs)
        provider_tree.add_traits(nodename, CHANNEL_TRAIT)

    def check_can_live_migrate_source(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Refuses: the channel is a piece of this host's memory."""
        if wanted_by(instance) is not None:
            raise exception.MigrationPreCheckError(
                reason="the instance has a channel to the GPU pool, which is shared memory of "
                "this host and cannot be moved while it runs; migrate it cold, or shelve it and "
                "unshelve it elsewhere"
            )
        return super().check_can_live_migrate_source(context, instance, *args, **kwargs)

    def suspend(self, context: Any, instance: Any, *args: Any, **kwargs: Any) -> Any:
        """Takes the channel out first: libvirt saves no guest that maps this host's memory.

        Its definition keeps it, and sluice-server plugs it in again once the guest goes on. Refused
        while a program uses it, as that could not go on; the instance stays as it was.
        """
        if wanted_by(instance) is None:
            return super().suspend(context, instance, *args, **kwargs)
        _take_channel_out(instance)
        try:
            return super().suspend(context, instance, *args, **kwargs)
        except Exception:
            _put_channel_back(instance)
            raise

    def _get_guest_config(self, *args: Any, **kwargs: Any) -> Any:
        instance = kwargs["instance"] if "instance" in kwargs else args[0]
        specs = wanted_by(instance)
        guest = super()._get_guest_config(*args, **kwargs)
        if specs is None:
            return guest
        try:
            channel = prepare_channel(
                CONF.sluice.server_socket, instance.uuid, specs, CONF.sluice.server_seconds
            )
        except ServerRefused as error:
            LOG.error("no channel to the GPU pool: %s", error, instance=instance)
            raise exception.InstanceDeployFailure(reason=str(error)) from error
        for xml in channel.devices:  # of a server of 0.1.0
            guest.add_device(_Element(xml))
        guest.metadata.append(_Element(channel.metadata))
        LOG.info("channel to the GPU pool for %s", specs, instance=instance)
        return guest

    def _create_guest(
        self, context: Any, xml: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Nova calls `post_xml_callback` when the domain is defined and not started yet."""
        if _lacks_channel(xml):
            theirs = kwargs.get("post_xml_callback")

            def defined() -> None:
                _make_ready(instance)
                if theirs is not None:
                    theirs()

            kwargs["post_xml_callback"] = defined
        return super()._create_guest(context, xml, instance, *args, **kwargs)


def _lacks_channel(xml: Any) -> bool:
    """Whether a definition asks for a channel and has no device of one.

    Nova defines a domain anew by its former XML as well, to resume or unrescue it: that has both.
    """
    domain = etree.fromstring(xml.encode() if isinstance(xml, str) else xml)
    if domain.find(_REQUEST) is None or domain.find(_VSOCK) is not None:
        return False
    names = [shmem.get("name", "") for shmem in domain.findall("devices/shmem")]
    return not any(name.startswith(_REGION_PREFIX) for name in names)


def _make_ready(instance: Any) -> None:
    try:
        make_ready(CONF.sluice.server_socket, instance.uuid, CONF.sluice.server_seconds)
    except ServerRefused as error:
        LOG.error("no channel to the GPU pool: %s", error, instance=instance)
        raise exception.InstanceDeployFailure(reason=str(error)) from error
    LOG.info("the channel to the GPU pool is in the definition", instance=instance)


def _take_channel_out(instance: Any) -> None:
    socket, seconds = CONF.sluice.server_socket, CONF.sluice.server_seconds
    try:
        programs = programs_using(socket, instance.uuid, seconds)
        if programs:
            raise _stays(
                f"a program uses its vGPU and could not go on ({'; '.join(programs[:3])}); let it "
                "end, or stop the instance"
            )
        released = unplug_channel(socket, instance.uuid, seconds)
    except ServerRefused as error:
        raise _stays(str(error)) from error
    if not released:
        raise _stays(
            "the guest does not release its channel to the GPU pool (is it still booting, or has "
            "it no PCI hot-plug?); stop the instance instead"
        )


def _put_channel_back(instance: Any) -> None:
    """The error that led here is what its caller is told; one of ours is logged."""
    try:
        socket, seconds = CONF.sluice.server_socket, CONF.sluice.server_seconds
        problems = plug_channel(socket, instance.uuid, seconds)
    except ServerRefused as error:
        problems = [str(error)]
    for problem in problems:
        LOG.error("the channel to the GPU pool is not back: %s", problem, instance=instance)


def _stays(reason: str) -> Exception:
    """The operation is refused and the instance goes on; its fault says why."""
    refused: Exception = exception.InstanceFaultRollback(
        exception.InstanceSuspendFailure(reason=reason)
    )
    return refused


def wanted_by(instance: Any) -> VgpuSpecs | None:
    """What the instance's flavor asks for; InstanceDeployFailure where that cannot be read."""
    try:
        return parse(instance.flavor.extra_specs or {})
    except InvalidSpecs as error:
        raise exception.InstanceDeployFailure(
            reason=f"flavor {instance.flavor.name}: {error}"
        ) from error
