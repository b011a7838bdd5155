"""Ray nodes for tests: small, on this host or in namespaces that stand for hosts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

STARTING_SECONDS = 90
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_AUTH_MODE": "disabled",
}
RAY = (sys.executable, "-m", "ray.scripts.scripts")


class RayNode:
    """A `ray start --block`, and all that it has started."""

    def __init__(
        self, ip: str, address: str, num_ranks: int, *, head: bool, inside: Sequence[str] = ()
    ) -> None:
        self.address = address
        port = address.rpartition(":")[2]
        place = [f"--address={address}"]
        if head:
            place = ["--head", f"--port={port}", "--include-dashboard=false"]
        self._process = subprocess.Popen(
            [
                *inside,
                *RAY,
                "start",
                "--block",
                *place,
                f"--node-ip-address={ip}",
                "--num-cpus=0",
                "--num-gpus=0",
                f"--resources={json.dumps({'takt_rank': num_ranks})}",
                f"--object-store-memory={80 << 20}",
                "--disable-usage-stats",
            ],
            env=os.environ | QUIET,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def wait_until_listening(address: str, pid: int | str = "self") -> None:
    """Until the port is open in the network of a process."""
    port = f":{int(address.rpartition(':')[2]):04X} "
    tables = [Path(f"/proc/{pid}/net/{name}") for name in ("tcp", "tcp6")]
    deadline = time.monotonic() + STARTING_SECONDS
    while True:
        lines = [line.split() for table in tables for line in table.read_text().splitlines()]
        if any(f"{line[1]} ".endswith(port) and line[3] == "0A" for line in lines):
            return
        assert time.monotonic() < deadline, f"nothing listens at {address}"
        time.sleep(0.1)


TMP = Path("/tmp")
PROGRAMS = (Path(__file__).parents[2], Path(sys.prefix), Path(sys.base_prefix))
"""The checkout and what runs it."""


class Host:
    """A namespace of network, mounts, host name and IPC, with a /dev/shm and a /tmp of its own.

    `model` is seen at `MODEL` inside, and of the /tmp outside only programs that are there.
    """

    MODEL = "/mnt/model"

    def __init__(self, name: str, model: Path) -> None:
        binds = [f"mkdir {self.MODEL}; mount --bind {model} {self.MODEL}; mkdir /mnt/tmp"]
        programs = {path.resolve() for path in (*PROGRAMS, *map(Path, sys.path))}
        for path in programs:
            if path.is_dir() and path.is_relative_to(TMP) and programs.isdisjoint(path.parents):
                inside = Path("/mnt/tmp") / path.relative_to(TMP)
                binds.append(f"mkdir -p {inside}; mount --rbind {path} {inside}")
        script = (
            f"set -e; hostname {name}; ip link set lo up; mount -t tmpfs tmpfs /dev/shm; "
            f"mount -t tmpfs tmpfs /mnt; {'; '.join(binds)}; mount --rbind /mnt/tmp /tmp; "
            "echo ready; exec sleep infinity"
        )
        self._process = subprocess.Popen(
            ["unshare", "-n", "-m", "-i", "-u", "sh", "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.is_ready = self._process.stdout.readline().strip() == "ready"
        self.pid = self._process.pid
        self.inside = ("nsenter", "-t", str(self.pid), "-n", "-m", "-i", "-u", "--")

    def errors(self) -> str:
        """What a host that is not ready said before it ended."""
        assert self._process.stderr is not None
        return "" if self.is_ready else self._process.stderr.read()

    def run(self, command: str) -> None:
        subprocess.run([*self.inside, *command.split()], check=True)

    def unplug(self) -> None:
        """Whatever was said on the cable gets no answer from now on."""
        self.run("ip link set eth0 down")

    def kill(self) -> None:
        """All at once, but what keeps the network itself."""
        for process in _in_network_of(self.pid):
            if process != self.pid:
                os.kill(process, signal.SIGKILL)

    def close(self) -> None:
        self.kill()
        self._process.kill()
        self._process.communicate()


def connect(hosts: Sequence[Host], ips: Sequence[str]) -> None:
    """Cables from all of them to a switch on the first."""
    hosts[0].run("ip link add name switch type bridge")
    hosts[0].run("ip link set switch up")
    for index, (host, ip) in enumerate(zip(hosts, ips, strict=True)):
        add = f"ip link add port{index} netns {hosts[0].pid} type veth peer name eth0"
        subprocess.run([*add.split(), "netns", str(host.pid)], check=True)
        hosts[0].run(f"ip link set port{index} master switch")
        hosts[0].run(f"ip link set port{index} up")
        host.run(f"ip addr add {ip}/24 dev eth0")
        host.run("ip link set eth0 up")


def _in_network_of(pid: int) -> list[int]:
    network = Path(f"/proc/{pid}/ns/net").readlink()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "ns" / "net").readlink() == network:
                found.append(int(process.name))
        except OSError:
            continue
    return found
