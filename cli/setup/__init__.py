# SPDX-License-Identifier: Apache-2.0
"""`sluice init` and `sluice invite`: a working pool from one command, and further hosts in it."""
