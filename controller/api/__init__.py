# SPDX-License-Identifier: Apache-2.0
"""The controller's REST API, /v1."""
