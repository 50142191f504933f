# SPDX-License-Identifier: Apache-2.0
"""`sluice doctor` and `sluice support-bundle` on hosts; guests have theirs in guest_runtime."""
