# SPDX-License-Identifier: Apache-2.0
"""The way in to the OpenStack rig: everything started, ready for `openstack` and for tests.

Called by tests/openstack, or by hand with ``python -m tests.rigs.openstack.rig start|stop|status``.
Owns ``build/openstack`` (another folder with ``SLUICE_OPENSTACK_RIG_DIR``): a virtual environment,
the databases and the processes. The first start installs and sets everything up, later ones take
seconds; stop leaves the databases for the next start.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import jinja2

from tests.harness.free_ports import free_port
from tests.rigs.kvm.private_libvirt import PrivateLibvirt

from .processes import Processes

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[2]
HOST = "127.0.0.1"
REGION = "R1"
PASSWORD = "rig"
SERVICES = ("keystone", "placement", "glance", "neutron", "nova-api")
DAEMONS = ("nova-conductor", "nova-scheduler", "nova-compute")
PORTS = ("mysql", "rabbit", "rabbit-distribution", *SERVICES)
CONFIGURATIONS = {
    "keystone/keystone.conf": "keystone.conf.j2",
    "placement/placement.conf": "placement.conf.j2",
    "glance/glance-api.conf": "glance-api.conf.j2",
    "neutron/neutron.conf": "neutron.conf.j2",
    "neutron/plugins/ml2/ml2_conf.ini": "ml2_conf.ini.j2",
    "nova/nova.conf": "nova.conf.j2",
}
COPIED = {
    "glance/glance-api-paste.ini": "glance/glance-api-paste.ini",
    "nova/api-paste.ini": "nova/api-paste.ini",
    "neutron/api-paste.ini": "neutron/api-paste.ini",
}


@dataclass
class Settings:
    """What a test chooses; a change takes effect when the service is started."""

    compute_driver: str = "libvirt.LibvirtDriver"
    compute_host: str = "compute1"
    #: The address of dynamic vendordata; empty: none.
    vendordata: str = ""
    #: Where the driver finds the host's sluice-server; empty: the driver's default.
    server_socket: str = ""
    #: Whether Nova is told to notify.
    notifications: bool = True
    #: Folders with packages to install into Nova's environment.
    packages: list[Path] = field(default_factory=list)


class OpenStackRig:
    """One OpenStack below a folder."""

    def __init__(self, root: Path | None = None, settings: Settings | None = None) -> None:
        given = os.environ.get("SLUICE_OPENSTACK_RIG_DIR")
        self.root = root or (Path(given) if given else CHECKOUT / "build" / "openstack")
        self.settings = settings or Settings()
        self.venv = self.root / "venv"
        self.etc, self.data = self.root / "etc", self.root / "data"
        self.root.mkdir(parents=True, exist_ok=True)
        self.processes = Processes(self.root)
        self.libvirt = PrivateLibvirt(self.root / "lv")
        self.ports = self._ports()

    # what tests ask

    @property
    def keystone(self) -> str:
        """Where Keystone answers."""
        return f"http://{HOST}:{self.ports['keystone']}"

    @property
    def transport_url(self) -> str:
        """The message bus, as oslo.messaging writes it."""
        return f"rabbit://guest:guest@{HOST}:{self.ports['rabbit']}/"

    def credentials(self) -> dict[str, str]:
        """The environment of `openstack` as the administrator."""
        return {
            "OS_AUTH_URL": f"{self.keystone}/v3",
            "OS_USERNAME": "admin",
            "OS_PASSWORD": PASSWORD,
            "OS_PROJECT_NAME": "admin",
            "OS_USER_DOMAIN_NAME": "Default",
            "OS_PROJECT_DOMAIN_NAME": "Default",
            "OS_IDENTITY_API_VERSION": "3",
            "OS_REGION_NAME": REGION,
        }

    def openstack(self, *words: str, seconds: float = 180) -> Any:
        """Runs the `openstack` client and returns its JSON (its text where it prints none)."""
        json_words = ["-f", "json"] if _prints(words) else []
        done = subprocess.run(
            [str(self.venv / "bin/openstack"), *words, *json_words],
            env={**os.environ, **self.credentials(), "PYTHONWARNINGS": "ignore"},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"openstack {' '.join(words)}: {done.stderr.strip()[-2000:]}")
        return json.loads(done.stdout) if json_words else done.stdout

    def tail(self, service: str, characters: int = 3000) -> str:
        """The end of a service's log."""
        return self.processes.tail(service, characters)

    # life

    def start(self) -> None:
        """Installs and sets up what is missing, then starts everything that does not run."""
        began = time.monotonic()
        self.install()
        ready = self.root / "ready"
        self.configure()
        self._start_engines()
        if not ready.exists():
            self._set_up_databases()
        self._start_uwsgi("keystone", "keystone.wsgi.api:application")
        self._wait("keystone")
        if not ready.exists():
            self._set_up_accounts()
            ready.touch()
        self.libvirt.start()
        self._start_uwsgi("placement", "placement.wsgi.api:application")
        self._start_uwsgi("glance", "glance.wsgi.api:application")
        self._start_uwsgi("neutron", "neutron_application:application")
        self._start_uwsgi("nova-api", "nova.wsgi.osapi_compute:application", threads=6)
        for service in SERVICES:
            self._wait(service)
        for daemon in DAEMONS:
            self._start_daemon(daemon)
        self.await_computes(1)
        _say(f"OpenStack at {self.keystone} after {time.monotonic() - began:.0f} s")

    def stop(self) -> None:
        """Ends every process; databases and the installation stay."""
        for name in (*reversed(DAEMONS), *reversed(SERVICES), "rabbit", "mysql"):
            self.processes.stop(name)
        self._destroy_guests()
        self.libvirt.stop()

    def restart(self, *names: str) -> None:
        """Stops and starts services of Nova, with the configuration as the settings are now."""
        self.configure()
        self.restart_services(*names)

    def restart_services(self, *names: str) -> None:
        """The same with the configuration as the files have it."""
        for name in names:
            self.processes.stop(name)
        for name in names:
            if name == "nova-api":
                self._start_uwsgi("nova-api", "nova.wsgi.osapi_compute:application", threads=6)
                self._wait(name)
            else:
                self._start_daemon(name)

    def install(self) -> None:
        """Debian's and PyPI's packages, and ours into Nova's environment."""
        subprocess.run([str(HERE / "install.sh"), str(self.venv)], check=True)
        for package in self.settings.packages:
            subprocess.run(
                [
                    *(str(self.venv / "bin/python"), "-m", "pip", "install", "--quiet"),
                    *("--disable-pip-version-check", "--no-deps", "--no-build-isolation"),
                    *("--force-reinstall", str(package)),
                ],
                check=True,
            )

    def status(self) -> dict[str, int]:
        """Running processes with their memory in MiB."""
        return {name: self.processes.resident_mib(name) for name in self.processes.names()}

    # within

    def _ports(self) -> dict[str, int]:
        path = self.root / "ports.json"
        if path.exists():
            found: dict[str, int] = json.loads(path.read_text())
            return found
        ports = {name: free_port() for name in PORTS}
        path.write_text(json.dumps(ports))
        return ports

    def configure(self) -> None:
        """Writes every service's configuration."""
        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(HERE / "conf"),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        values = {
            "etc": self.etc,
            "data": self.data,
            "venv": self.venv,
            "database": f"mysql+pymysql://root@{HOST}:{self.ports['mysql']}",
            "rabbit": self.transport_url,
            "keystone": self.keystone,
            "glance": f"http://{HOST}:{self.ports['glance']}",
            "region": REGION,
            "password": PASSWORD,
            "libvirt": self.libvirt.uri,
            "compute_driver": self.settings.compute_driver,
            "compute_host": self.settings.compute_host,
            "vendordata": self.settings.vendordata,
            "server_socket": self.settings.server_socket,
            "notifications": self.settings.notifications,
        }
        for name, template in CONFIGURATIONS.items():
            path = self.etc / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(environment.get_template(template).render(values))
        for name, source in COPIED.items():
            shutil.copy(self.venv / "etc" / source, self.etc / name)
        for folder in ("mysql", "rabbit", "images", "instances", "lock"):
            (self.data / folder).mkdir(parents=True, exist_ok=True)
        (self.etc / "nova/provider_config").mkdir(exist_ok=True)

    def _start_engines(self) -> None:
        database, rabbit = self.data / "mysql", self.data / "rabbit"
        temporary = self.data / "mysql-tmp"  # a machine's /tmp may be root's alone
        temporary.mkdir(exist_ok=True)
        for folder in (database, temporary):
            shutil.chown(folder, "mysql")
        if not (database / "mysql").exists():
            _say("making the database")
            self._run(
                *("mariadb-install-db", "--no-defaults", f"--datadir={database}", "--user=mysql"),
                f"--tmpdir={temporary}",
                "--auth-root-authentication-method=normal",
            )
        self.processes.start(
            "mysql",
            [
                *("mariadbd", "--no-defaults", "--user=mysql", f"--datadir={database}"),
                f"--tmpdir={temporary}",
                *(f"--socket={database}/s.sock", f"--pid-file={database}/m.pid"),
                *(f"--bind-address={HOST}", f"--port={self.ports['mysql']}"),
                # nothing here outlives the machine
                *("--max-connections=300", "--innodb-flush-log-at-trx-commit=0"),
            ],
        )
        self.processes.start(
            "rabbit",
            ["/usr/lib/rabbitmq/bin/rabbitmq-server"],
            {
                "RABBITMQ_NODENAME": f"rig{self.ports['rabbit']}@localhost",
                "RABBITMQ_NODE_IP_ADDRESS": HOST,
                "RABBITMQ_NODE_PORT": str(self.ports["rabbit"]),
                "RABBITMQ_DIST_PORT": str(self.ports["rabbit-distribution"]),
                "ERL_EPMD_ADDRESS": HOST,
                "RABBITMQ_MNESIA_BASE": str(rabbit),
                "RABBITMQ_LOG_BASE": str(self.root / "log"),
                "RABBITMQ_PID_FILE": str(rabbit / "pid"),
                "RABBITMQ_ENABLED_PLUGINS_FILE": str(rabbit / "plugins"),
                "HOME": str(rabbit),
            },
        )
        self.processes.wait_port("mysql", self.ports["mysql"])
        self.processes.wait_port("rabbit", self.ports["rabbit"])

    def _set_up_databases(self) -> None:
        _say("setting up the databases (a minute)")
        names = ("keystone", "placement", "glance", "neutron", "nova", "nova_api", "nova_cell0")
        for name in names:
            self._sql(f"create database if not exists {name} character set utf8mb3")
        for name in ("fernet", "credential"):
            (self.etc / "keystone" / name).mkdir(exist_ok=True)
        keystone = ("keystone-manage", "--config-file", f"{self.etc}/keystone/keystone.conf")
        root = ("--keystone-user", "root", "--keystone-group", "root")
        self._run(*keystone, "fernet_setup", *root)
        self._run(*keystone, "credential_setup", *root)
        self._run(*keystone, "db_sync")
        urls = [
            word
            for kind in ("public", "internal", "admin")
            for word in (f"--bootstrap-{kind}-url", f"{self.keystone}/v3")
        ]
        self._run(
            *(*keystone, "bootstrap", "--bootstrap-password", PASSWORD, "--bootstrap-username"),
            *("admin", "--bootstrap-region-id", REGION, *urls),
        )
        self._run(
            *("placement-manage", "--config-file", f"{self.etc}/placement/placement.conf"),
            *("db", "sync"),
        )
        self._run("glance-manage", "--config-file", f"{self.etc}/glance/glance-api.conf", "db_sync")
        self._run(
            *("neutron-db-manage", "--config-file", f"{self.etc}/neutron/neutron.conf"),
            *("--config-file", f"{self.etc}/neutron/plugins/ml2/ml2_conf.ini", "upgrade", "head"),
        )
        nova = ("nova-manage", "--config-file", f"{self.etc}/nova/nova.conf")
        cell0 = f"mysql+pymysql://root@{HOST}:{self.ports['mysql']}/nova_cell0"
        self._run(*nova, "api_db", "sync")
        self._run(*nova, "cell_v2", "map_cell0", "--database_connection", cell0)
        if "cell1" not in self._run(*nova, "cell_v2", "list_cells"):
            self._run(*nova, "cell_v2", "create_cell", "--name", "cell1")
        self._run(*nova, "db", "sync")

    def _set_up_accounts(self) -> None:
        _say("setting up accounts and endpoints")
        places = {
            "nova": ("compute", f"http://{HOST}:{self.ports['nova-api']}/v2.1"),
            "placement": ("placement", f"http://{HOST}:{self.ports['placement']}"),
            "glance": ("image", f"http://{HOST}:{self.ports['glance']}"),
            "neutron": ("network", f"http://{HOST}:{self.ports['neutron']}"),
        }
        script = HERE / "accounts.py"
        self._run(
            *("python", str(script), json.dumps({"places": places, "region": REGION})),
            PASSWORD,
            environment=self.credentials(),
        )

    def _start_uwsgi(self, name: str, module: str, threads: int = 4) -> None:
        folders = {
            "keystone": ("OS_KEYSTONE_CONFIG_DIR", "keystone"),
            "placement": ("OS_PLACEMENT_CONFIG_DIR", "placement"),
            "glance": ("OS_GLANCE_CONFIG_DIR", "glance"),
            "neutron": ("OS_NEUTRON_CONFIG_DIR", "neutron"),
            "nova-api": ("OS_NOVA_CONFIG_DIR", "nova"),
        }
        variable, folder = folders[name]
        environment = {variable: str(self.etc / folder), "PYTHONWARNINGS": "ignore"}
        if name == "neutron":
            environment["OS_NEUTRON_CONFIG_FILES"] = "neutron.conf;plugins/ml2/ml2_conf.ini"
        self.processes.start(
            name,
            [
                *(str(self.venv / "bin/uwsgi"), "--http-socket", f"{HOST}:{self.ports[name]}"),
                *("--module", module, "--master", "--processes", "1", "--threads", str(threads)),
                *("--enable-threads", "--lazy-apps", "--die-on-term", "--need-app"),
                *("--thunder-lock", "--buffer-size", "65535", "--add-header", "Connection: close"),
                *("-H", str(self.venv), "--chdir", str(HERE)),
            ],
            {**environment, "PATH": self._path()},
        )

    def _start_daemon(self, name: str) -> None:
        program = str(self.venv / "bin" / name)
        self._start_nova(name, [program, "--config-file", str(self.etc / "nova/nova.conf")])

    def start_compute(self, name: str, configuration: Path) -> None:
        """One more nova-compute, with what its host has of its own in another file."""
        program = str(self.venv / "bin/nova-compute")
        files = (self.etc / "nova/nova.conf", configuration)
        words = [word for path in files for word in ("--config-file", str(path))]
        self._start_nova(name, [program, *words])

    def _start_nova(self, name: str, command: list[str]) -> None:
        self.processes.start(name, command, {"PATH": self._path(), "PYTHONWARNINGS": "ignore"})

    def await_computes(self, count: int, seconds: float = 120) -> None:
        """Waits until the scheduler may choose so many compute hosts."""
        deadline = time.monotonic() + seconds
        while True:
            # after a longer stop the scheduler passes over a host until it has reported again
            services = self._nova("/os-services")["services"]
            up = [row["binary"] for row in services if row["state"] == "up"]
            hosts = len(self._nova("/os-hypervisors")["hypervisors"])
            if set(up) >= set(DAEMONS) and min(up.count("nova-compute"), hosts) >= count:
                return
            if not self.processes.running("nova-compute"):
                raise RuntimeError(f"nova-compute ended: {self.tail('nova-compute')}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"not {count} compute hosts after {seconds:.0f} s")
            time.sleep(1)

    def _nova(self, path: str) -> Any:
        """A GET as the administrator; the client would take seconds of the processor's time."""
        user = {"name": "admin", "password": PASSWORD, "domain": {"id": "default"}}
        identity = {"methods": ["password"], "password": {"user": user}}
        scope = {"project": {"name": "admin", "domain": {"id": "default"}}}
        body = {"auth": {"identity": identity, "scope": scope}}
        with httpx.Client(timeout=60, trust_env=False) as client:
            token = client.post(f"{self.keystone}/v3/auth/tokens", json=body).raise_for_status()
            headers = {"X-Auth-Token": token.headers["x-subject-token"]}
            url = f"http://{HOST}:{self.ports['nova-api']}/v2.1{path}"
            return client.get(url, headers=headers).raise_for_status().json()

    def _destroy_guests(self) -> None:
        if not self.libvirt.running():
            return
        listed = subprocess.run(
            ["virsh", "-c", self.libvirt.uri, "list", "--name"],
            capture_output=True,
            text=True,
            check=False,
        ).stdout.split()
        for name in listed:
            subprocess.run(
                ["virsh", "-c", self.libvirt.uri, "destroy", name], capture_output=True, check=False
            )

    def _wait(self, service: str) -> None:
        self.processes.wait_port(service, self.ports[service])

    def _sql(self, statement: str) -> None:
        self._run("mariadb", "-uroot", "-S", f"{self.data}/mysql/s.sock", "-e", statement)

    def _path(self) -> str:
        return f"{self.venv / 'bin'}:{os.environ.get('PATH', '')}"

    def _run(self, *command: str, environment: dict[str, str] | None = None) -> str:
        env = {**os.environ, "PATH": self._path(), "PYTHONWARNINGS": "ignore"}
        program = shutil.which(command[0], path=self._path()) or command[0]
        done = subprocess.run(
            [program, *command[1:]],
            env={**env, **(environment or {})},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            said = (done.stderr or done.stdout).strip()[-2000:]
            raise RuntimeError(f"{' '.join(command[:4])} ended with {done.returncode}: {said}")
        return done.stdout


def _prints(words: tuple[str, ...]) -> bool:
    """Whether the client's command has rows to print; the others print nothing."""
    return any(word in ("list", "show", "create", "issue", "quota") for word in words[:4])


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} openstack rig: {line}", file=sys.stderr, flush=True)


def main() -> int:
    """start, stop or status."""
    verb = sys.argv[1] if len(sys.argv) > 1 else ""
    rig = OpenStackRig()
    if verb == "start":
        rig.start()
        print(" ".join(f"{name}={value}" for name, value in rig.credentials().items()))
    elif verb == "stop":
        rig.stop()
    elif verb == "status":
        for name, memory in rig.status().items():
            print(f"{name}\t{memory} MiB" if memory else f"{name}\tended")
    else:
        print("usage: python -m tests.rigs.openstack.rig start|stop|status", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
