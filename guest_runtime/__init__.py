# SPDX-License-Identifier: Apache-2.0
"""What runs in a guest besides the native libraries: `sluice run` and `sluice check`.

Also copied into the guest bundle, so everything here is the standard library of Python 3.9 and
imports nothing else of Sluice.
"""

VERSION = "0.2.0.dev0"
