# SPDX-License-Identifier: Apache-2.0
"""Configuration files and the places where Sluice's own files are found."""
