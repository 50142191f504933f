# SPDX-License-Identifier: Apache-2.0
"""The application matrix: programs and test suites of others, natively and through Sluice.

    cd tests/gpu
    python -m applications list
    python -m applications prepare numba-cuda cupy     # where package registries are
    python -m applications unpack dist/applications    # on the machine with a GPU
    python -m applications run numba-cuda cupy         # both ways in one go, compared
    python -m applications keep                        # into docs/applications.jsonl

A file of entries/ says of each what it is made of, what is run and what is compared; packages.py
brings it to a machine without a network, running.py runs it, comparing.py judges, results.py keeps.
The page docs/applications.md has its table from what is kept (dev/application_table.py). Whatever
natively fails or is skipped is not compared and is counted as such.
"""
