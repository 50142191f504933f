# SPDX-License-Identifier: Apache-2.0
"""What each project may hold, holds and has used."""
