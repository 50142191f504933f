# SPDX-License-Identifier: Apache-2.0
"""Which module has the command, or the group of commands, of each word behind `sluice`.

Read by cli.application, which imports what the word on the command line needs and no more: all of
it takes longer than most commands. In the order of `sluice --help`.
"""

from __future__ import annotations

COMMANDS = {
    "status": "sluice.cli.pool_commands:status",
    "queue": "sluice.cli.share_commands:queue",
    "move": "sluice.cli.share_commands:move",
    "usage": "sluice.cli.share_commands:usage",
    "drain": "sluice.cli.operation_commands:drain",
    "undrain": "sluice.cli.operation_commands:undrain",
    "top": "sluice.cli.top_command:top",
    "events": "sluice.cli.event_commands:events",
    "alerts": "sluice.cli.event_commands:alerts",
    "audit": "sluice.cli.event_commands:audit",
    "logs": "sluice.cli.pool_commands:logs",
    "doctor": "sluice.support.commands:doctor",
    "support-bundle": "sluice.support.commands:support_bundle",
    "init": "sluice.cli.setup.init_command:init",
    "invite": "sluice.cli.setup.invite_command:invite",
    "units": "sluice.cli.units:units",
    "completion": "sluice.cli.completion:script",
    "run": "sluice.cli.guest_commands:run_program",
    "check": "sluice.cli.guest_commands:check_program",
    "smi": "sluice.cli.guest_commands:show_own",
    "enrol": "sluice.cli.guest_commands:enrol_vm",
}

GROUPS = {
    "node": "sluice.cli.pool_commands:node_app",
    "gpu": "sluice.cli.pool_commands:gpu_app",
    "vgpu": "sluice.cli.vgpu_commands:app",
    "grant": "sluice.cli.pool_commands:grant_app",
    "session": "sluice.cli.pool_commands:session_app",
    "reservation": "sluice.cli.share_commands:reservation_app",
    "quota": "sluice.cli.share_commands:quota_app",
    "pool": "sluice.cli.operation_commands:pool_app",
    "token": "sluice.cli.token_commands:app",
    "ca": "sluice.cli.ca_commands:app",
    "cdi": "sluice.cli.cdi_commands:app",
    "vm": "sluice.hypervisor.cli:app",
    "vsphere": "sluice.hypervisor.vsphere.cli:app",
    "openstack": "sluice.nova_driver.commands:app",
}

OPTIONAL = frozenset({"vm", "vsphere", "openstack"})
"""Groups that are left out where what they need is not installed."""

MORE = {
    "node": {
        "drain": "sluice.cli.operation_commands:drain_node",
        "undrain": "sluice.cli.operation_commands:undrain_node",
    },
    "gpu": {
        "drain": "sluice.cli.operation_commands:drain_gpu",
        "undrain": "sluice.cli.operation_commands:undrain_gpu",
        "attach": "sluice.cli.native_commands:attach_gpu",
        "detach": "sluice.cli.native_commands:detach_gpu",
        "attachments": "sluice.cli.native_commands:list_attachments",
        "health": "sluice.cli.health_commands:health",
        "check": "sluice.cli.health_commands:check",
        "clear": "sluice.cli.health_commands:clear",
    },
    "grant": {
        "resize": "sluice.cli.operation_commands:resize_grant",
        "suspend": "sluice.cli.suspension_commands:suspend_grant",
        "resume": "sluice.cli.suspension_commands:resume_grant",
        "move": "sluice.cli.suspension_commands:move_grant",
    },
    "session": {
        "suspend": "sluice.cli.suspension_commands:suspend_session",
        "resume": "sluice.cli.suspension_commands:resume_session",
    },
}
"""Commands of a group that are not in its own module."""
