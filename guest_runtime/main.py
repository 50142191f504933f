# SPDX-License-Identifier: Apache-2.0
"""The `sluice` command of the guest bundle: run, check, smi, doctor, support-bundle, enrol, cdi.

Called by the bundle's bin/sluice. Parses by hand what argparse cannot: everything after `run` and
`check` belongs to the program. A command loads what it needs and no more: `run` stands before every
program, and in a guest without KVM each module counts.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from . import VERSION

_USAGE = """\
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    verb = words.pop(0) if words else "help"
    if verb == "run":
        from .run import run

        run(words)
    if verb == "check":
        if words and words[0] == "--":
            words.pop(0)
        from .check import check

        return check(words)
    if verb == "smi":
        try:
            from .smi import smi
        except ModuleNotFoundError as error:
            print(
                f"nvidia-smi: this Python has no module {error.name}: install all of it (Debian's "
                "python3; python3-minimal is not enough)",
                file=sys.stderr,
            )
            return 255  # as for any other error of its own

        return smi(words)
    if verb == "doctor":
        from .doctor import doctor

        return doctor(words)
    if verb == "support-bundle":
        from .support_bundle import support_bundle

        return support_bundle(words)
    if verb == "enrol":
        from .enrol import enrol

        return enrol(words)
    if verb == "cdi":
        from .cdi import cdi_command

        return cdi_command(words)
    if verb in ("version", "--version"):
        print(f"sluice {VERSION}")
        return 0
    if verb in ("help", "--help", "-h"):
        print(_USAGE, end="")
        return 0
    print(_USAGE, end="", file=sys.stderr)
    return 2
