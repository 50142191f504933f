# SPDX-License-Identifier: Apache-2.0
"""The pool's domain: what exists, who has what, who waits. No I/O happens here."""
