# SPDX-License-Identifier: Apache-2.0
"""Where clients, VMs' managers and Prometheus come in."""
