# SPDX-License-Identifier: Apache-2.0
"""`python -m sluice.guest_runtime`: the guest's `sluice` command without a bundle."""

import sys

from .main import main

sys.exit(main())
