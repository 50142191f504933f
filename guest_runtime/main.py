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

_HELP = ("-h", "--help")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    verb = words.pop(0) if words else "help"
    if verb in ("run", "check") and words and words[0] in _HELP:
        from .usage import RUN, USAGE, options

        print(f"{RUN}{options()}" if verb == "run" else USAGE, end="")
        return 0
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
    from .usage import USAGE

    wanted = verb in ("help", *_HELP)
    print(USAGE, end="", file=sys.stdout if wanted else sys.stderr)
    return 0 if wanted else 2
