# SPDX-License-Identifier: Apache-2.0
"""Makes the service accounts and the catalogue of the rig: run once by rig.py, in Nova's Python.

`accounts.py JSON PASSWORD`; whatever is there already stays, so that a broken first start goes on.
"""

import json
import sys

import openstack


def main() -> None:
    """Users, roles, services, endpoints."""
    wanted, password = json.loads(sys.argv[1]), sys.argv[2]
    identity = openstack.connect().identity
    project = identity.find_project("service") or identity.create_project(
        name="service", domain_id="default"
    )
    roles = [identity.find_role(name) or identity.create_role(name=name) for name in ROLES]
    for name, (kind, url) in wanted["places"].items():
        user = identity.find_user(name) or identity.create_user(
            name=name, password=password, domain_id="default", default_project_id=project.id
        )
        for role in roles:
            identity.assign_project_role_to_user(project, user, role)
        if any(service.name == name for service in identity.services()):
            continue
        service = identity.create_service(name=name, type=kind)
        for interface in ("public", "internal", "admin"):
            identity.create_endpoint(
                service_id=service.id, interface=interface, url=url, region_id=wanted["region"]
            )


ROLES = ("admin", "service")

if __name__ == "__main__":
    main()
