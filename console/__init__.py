# SPDX-License-Identifier: Apache-2.0
"""The web console of the controller: pages for people, at the address of REST."""
