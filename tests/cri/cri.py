# SPDX-License-Identifier: GPL-3.0-or-later
"""A small CRI client for tests: pods by a runtime handler on a test node's containerd, asked from outside.

    cri.py prepare NODE                                            give it an image for pods and containers (no registry, no CNI)
    cri.py run NODE [--handler H] [--env K=V]... [--cdi NAME]... [-- CMD...]
                                                                   run a pod with one container, print what CMD says in it (default ls /dev)
    cri.py run NODE --keep ...                                     leave the pod running; its id is the last line
    cri.py exec NODE POD -- CMD...                                 the same in a pod that was kept
    cri.py pods NODE                                               the pods as JSON
    cri.py remove NODE POD...                                      end pods
    cri.py status NODE                                             what the runtime says about itself, as JSON

Exit code: that of CMD; 3 where the runtime refused something (its words on standard error).
As a library: `from cri import Client, prepare`. The container's log is not used: what is looked at is asked by ExecSync.
"""

from __future__ import annotations

import argparse
import base64
import functools
import json
import sys
import uuid
from pathlib import Path
from types import ModuleType

import grpc

HERE = Path(__file__).resolve().parent
NODES = HERE.parent / "nodes"
sys.path[:0] = [str(HERE), str(NODES)]

import images
from npu_nodes import Nodes, NodesError

SOCKET = "/run/containerd/containerd.sock"
LOOK = ["/bin/ls", "/dev"]


class Refused(Exception):
    """The runtime answered with an error; the text is the runtime's."""


@functools.cache
def messages() -> tuple[ModuleType, ModuleType]:
    """Messages and stubs of cri.proto, compiled when they are first asked for."""
    return grpc.protos_and_services("cri.proto")


class Client:
    """One CRI socket. Methods raise Refused with the runtime's own words."""

    def __init__(self, socket: str, timeout: float = 60):
        self.types, services = messages()
        self.timeout = timeout
        # The socket's path is no name that a server could have; what is sent as :authority must be one.
        self.channel = grpc.insecure_channel(f"unix://{socket}", options=[("grpc.default_authority", "localhost")])
        self.runtime = services.RuntimeServiceStub(self.channel)
        self.images = services.ImageServiceStub(self.channel)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_error) -> None:
        self.channel.close()

    def _call(self, method, request):
        try:
            return method(request, timeout=self.timeout, wait_for_ready=True)
        except grpc.RpcError as error:
            raise Refused(f"{error.code().name}: {error.details()}") from error

    def status(self) -> dict:
        """{"name", "version", "conditions": {type: [bool, reason]}, "handlers": [names], "config": dict}."""
        version = self._call(self.runtime.Version, self.types.VersionRequest())
        answer = self._call(self.runtime.Status, self.types.StatusRequest(verbose=True))
        config = json.loads(answer.info.get("config") or "{}")
        # Only from containerd 2.0 on does the answer itself name them.
        named = {handler.name for handler in answer.runtime_handlers if handler.name}
        return {
            "name": version.runtime_name, "version": version.runtime_version,
            "conditions": {condition.type: [condition.status, condition.reason] for condition in answer.status.conditions},
            "handlers": sorted(named or (config.get("containerd") or {}).get("runtimes") or {}),
            "config": config,
        }  # fmt: skip

    def has_image(self, name: str) -> bool:
        request = self.types.ImageStatusRequest(image=self.types.ImageSpec(image=name))
        return bool(self._call(self.images.ImageStatus, request).image.id)

    def pods(self) -> list[dict]:
        items = self._call(self.runtime.ListPodSandbox, self.types.Nothing()).items
        states = self.types.PodSandboxState
        return [{"id": item.id, "name": item.metadata.name, "namespace": item.metadata.namespace, "handler": item.runtime_handler,
                 "state": states.Name(item.state)} for item in items]  # fmt: skip

    def run(self, handler: str = "", environment: dict[str, str] | None = None, cdi: list[str] | None = None, name: str = "look",
            image: str = images.TINY) -> tuple[str, str]:  # fmt: skip
        """Start a pod of the host's network with one container that sleeps; (pod, container). What could not be started is taken away."""
        types = self.types
        # With the host's network there is no need of CNI, and no host name of its own.
        spaces = types.NamespaceOption(network=types.NODE)
        pod_config = types.PodSandboxConfig(
            metadata=types.PodSandboxMetadata(name=name, uid=str(uuid.uuid4()), namespace="default"),
            linux=types.LinuxPodSandboxConfig(security_context=types.LinuxSandboxSecurityContext(namespace_options=spaces)),
        )
        pod = self._call(self.runtime.RunPodSandbox, types.RunPodSandboxRequest(config=pod_config, runtime_handler=handler)).pod_sandbox_id
        try:
            config = types.ContainerConfig(
                metadata=types.ContainerMetadata(name="look"),
                image=types.ImageSpec(image=image),
                command=images.COMMAND,
                envs=[types.KeyValue(key=key, value=value) for key, value in (environment or {}).items()],
                CDI_devices=[types.CDIDevice(name=device) for device in cdi or ()],
                linux=types.LinuxContainerConfig(security_context=types.LinuxContainerSecurityContext(namespace_options=spaces)),
            )
            request = types.CreateContainerRequest(pod_sandbox_id=pod, config=config, sandbox_config=pod_config)
            container = self._call(self.runtime.CreateContainer, request).container_id
            self._call(self.runtime.StartContainer, types.StartContainerRequest(container_id=container))
        except BaseException:
            self.remove(pod)
            raise
        return pod, container

    def containers(self, pod: str) -> list[str]:
        request = self.types.ListContainersRequest(filter=self.types.ContainerFilter(pod_sandbox_id=pod))
        return [item.id for item in self._call(self.runtime.ListContainers, request).containers]

    def exec(self, container: str, argv: list[str]) -> tuple[int, str, str]:
        """(exit code, stdout, stderr) of a command in a running container."""
        done = self._call(self.runtime.ExecSync, self.types.ExecSyncRequest(container_id=container, cmd=argv, timeout=int(self.timeout)))
        return done.exit_code, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")

    def remove(self, pod: str) -> None:
        request = self.types.PodSandboxRequest(pod_sandbox_id=pod)
        self._call(self.runtime.StopPodSandbox, request)
        self._call(self.runtime.RemovePodSandbox, request)


def connect(nodes: Nodes, name: str, socket: str = SOCKET) -> Client:
    """A client of the socket in a node's own file system, reached through its first process."""
    nodes.ip(name)  # names the nodes that are there, where this one is not
    pid = nodes.engine.docker("inspect", "--format", "{{.State.Pid}}", name).stdout.strip()
    return Client(f"/proc/{pid}/root{socket}")


def prepare(nodes: Nodes, name: str) -> list[str]:
    """Give a node's containerd our image, as its sandbox image too: its configuration stays the stock one. Returns the image's names."""
    nodes.ip(name)
    wanted = [images.TINY, images.sandbox_image(nodes.exec(name, ["containerd", "config", "dump"]).stdout)]
    busybox = nodes.engine.docker("exec", name, "base64", "/bin/busybox").stdout
    archive = images.archive(base64.b64decode(busybox), wanted)
    nodes.exec(name, ["ctr", "--namespace", "k8s.io", "images", "import", "-"], stdin=archive)
    return wanted


def pairs(words: list[str]) -> dict[str, str]:
    """K=V words as a dict; a word without = is a mistake of the caller."""
    wrong = [word for word in words if "=" not in word]
    if wrong:
        raise ValueError(f"--env {wrong[0]}: not K=V")
    return dict(word.split("=", 1) for word in words)


def show(result: tuple[int, str, str]) -> int:
    code, out, err = result
    sys.stdout.write(out)
    sys.stderr.write(err)
    return code


def run(client: Client, args: argparse.Namespace, command: list[str]) -> int:
    pod, container = client.run(args.handler, pairs(args.env), args.cdi, args.name)
    try:
        return show(client.exec(container, command or LOOK))
    finally:
        if args.keep:
            print(pod)
        else:
            client.remove(pod)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="cri.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--socket", default=SOCKET, help="on the node (default %(default)s)")
    verbs = top.add_subparsers(dest="verb", required=True)
    for verb in ("prepare", "status", "pods", "run", "exec", "remove"):
        verbs.add_parser(verb).add_argument("node")
    known = verbs.choices
    known["run"].add_argument("--handler", default="", help="runtime handler (default: the engine's default)")
    known["run"].add_argument("--env", action="append", default=[], metavar="K=V")
    known["run"].add_argument("--cdi", action="append", default=[], metavar="NAME", help="CDI device, as kubelet passes it on")
    known["run"].add_argument("--name", default="look", help="of the pod")
    known["run"].add_argument("--keep", action="store_true", help="leave the pod running and print its id last")
    known["exec"].add_argument("pod")
    known["remove"].add_argument("pod", nargs="+")
    return top


def dispatch(args: argparse.Namespace, command: list[str]) -> int:
    nodes = Nodes()
    if args.verb == "prepare":
        print("\n".join(prepare(nodes, args.node)))
        return 0
    with connect(nodes, args.node, args.socket) as client:
        if args.verb == "run":
            return run(client, args, command)
        if args.verb == "exec":
            return show(client.exec(client.containers(args.pod)[0], command or LOOK))
        if args.verb == "remove":
            for pod in args.pod:
                client.remove(pod)
        else:
            print(json.dumps(client.status() if args.verb == "status" else client.pods(), indent=1))
    return 0


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    at = words.index("--") if "--" in words else len(words)
    try:
        return dispatch(parser().parse_args(words[:at]), words[at + 1 :])
    except Refused as error:
        print(f"cri: {error}", file=sys.stderr)
        return 3
    except (NodesError, ValueError) as error:
        print(f"cri: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
