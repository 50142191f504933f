# SPDX-License-Identifier: Apache-2.0
"""What the `sluice` command says of itself.

Used by main.py.
"""

from __future__ import annotations

import textwrap

from .client_settings import ALL, Setting

USAGE = """\
usage: sluice run [OPTIONS] CMD [ARGUMENT...]
                                      start CMD on a vGPU of the pool
                  --vgpu N, --gmem MIB, --ratio PERCENT: what it asks for
                  --share: CMD and all that it starts are one job, which shares the vGPUs
                  --processes N: room for so many processes of it (their contexts)
       sluice check [CMD [ARGUMENT...]]
                                      would CMD work here, and if not, what to do
       sluice smi [OPTION...]        what you have of the pool, as nvidia-smi shows it
       sluice doctor [--json] [-q]   look at this machine from top to bottom: what is wrong, and
                                      what to do
       sluice support-bundle [-o FILE]
                                      collect logs, settings without secrets and versions in a file
       sluice enrol [--wait SECONDS] [--group GROUP]
                                      in a VM of vSphere or OpenStack: get its token, as root
       sluice enrol --controller HOST:PORT --secret-file FILE [--ca FILE]
                                      anywhere, with a one-time secret of an operator
       sluice cdi generate | list     as root: what container engines add to containers that get
                                      a vGPU (--device sluice.io/vgpu=all)
       sluice version

SLUICE_VGPU (how many), SLUICE_GMEM (MiB of each) and SLUICE_RATIO (percent of each) say what CMD
asks for; /etc/sluice/client.conf and ~/.sluice/client.conf give defaults.
"""

RUN = """\
usage: sluice run [OPTIONS] [--] CMD [ARGUMENT...]

Starts CMD so that the CUDA libraries it finds are Sluice's: it gets vGPUs of the pool at its first
CUDA call, and gives them back when it ends. Each option overrules a variable and a line of
client.conf.

  --share                  CMD and all that it starts are one job, which shares the vGPUs
"""
_WIDTH, _INDENT = 100, 27


def options() -> str:
    """A paragraph for each option of `sluice run` that is a setting."""
    lines = []
    for setting in (each for each in ALL if each.option):
        words = f"  {setting.option} {_value(setting)}".rstrip()
        about = setting.about.replace("`", "")
        if setting.default and not setting.flag:
            about += f" (default: {setting.default})"
        told = textwrap.wrap(about, _WIDTH - _INDENT)
        if len(words) >= _INDENT:
            lines.append(words)
            words = ""
        lines += [f"{words:{_INDENT}}{told[0]}", *(" " * _INDENT + each for each in told[1:])]
    return "\n".join(lines) + "\n"


def _value(setting: Setting) -> str:
    """What stands behind the option."""
    if setting.flag:
        return ""
    if isinstance(setting.accepts, range):
        return setting.unit.upper() or "N"
    return "|".join(setting.accepts) if setting.accepts else "TEXT"
