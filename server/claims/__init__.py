# SPDX-License-Identifier: Apache-2.0
"""Claims of platforms that place work by themselves (Kubernetes): a socket and terms for each."""
