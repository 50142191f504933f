# SPDX-License-Identifier: Apache-2.0
"""The command `sluice`: what runs before anything else is imported.

`sluice run` stands before every program, so that the guest's part is asked at once; all other
commands are cli.application's.
"""

from __future__ import annotations

import sys

from sluice.cli import guest_part


def main() -> int:
    """The console command; returns the exit status."""
    arguments = sys.argv[1:]
    if arguments and arguments[0] in guest_part.WORDS:
        return guest_part.run(arguments)
    from sluice.cli import application  # with typer, for which no program need wait

    return application.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
