# SPDX-License-Identifier: Apache-2.0
"""Neutron's WSGI application, with its mappers configured before the first request.

Loaded by uwsgi in the rig's virtual environment. Neutron 29.0.0 reads a relation of the model of
ports before any mapper is configured, which fails in a process that serves nothing but the API.
"""

from neutron.db.models import port_forwarding  # noqa: F401
from neutron.wsgi.api import application
from sqlalchemy import orm

orm.configure_mappers()

__all__ = ["application"]
