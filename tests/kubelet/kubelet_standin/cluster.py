# SPDX-License-Identifier: GPL-3.0-or-later
"""Pods that the API server has bound to this node, for as long as they are there: admission, a real container, status.

Only pods that end by themselves and need no volumes (restartPolicy Never): each container is run by the node's own docker with what its
plugin answered. What of a container's security is a flag of docker is kept: user, read-only root, capabilities.
"""

import json
import os
import subprocess
import tempfile
import threading
import time
import urllib.request

from .pods import AdmissionError, key_of, new_pod

POLL_SECONDS = 0.5
TERMINATION_LOG = "/dev/termination-log"
MESSAGE_BYTES = 4096  # of a termination message (source: pkg/kubelet, MaxContainerTerminationMessageLength)
LABEL = "kubelet-standin.pod"


class Api:
    """The few requests a kubelet makes about pods."""

    def __init__(self, joined):
        self.joined = joined
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(self, path, method="GET", body=None):
        headers = {"Content-Type": "application/merge-patch+json"}
        if self.joined["token"]:
            headers["Authorization"] = f"Bearer {self.joined['token']}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.joined['server']}{path}", data, headers, method=method)  # noqa: S310  http(s) or nothing
        with self.opener.open(request, timeout=10) as response:
            return json.loads(response.read())

    def pods(self, node):
        items = self.ask("/api/v1/pods")["items"]
        return {key_of(one["metadata"]): one for one in items if one["spec"].get("nodeName") == node
                and one["spec"].get("restartPolicy") == "Never" and not one["spec"].get("volumes")}

    def report(self, manifest, status):
        meta = manifest["metadata"]
        self.ask(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status", "PATCH", {"status": status})


class Cluster(threading.Thread):
    """Takes pods from the API server that this kubelet has joined with `--pods`."""

    def __init__(self, kubelet, log):
        super().__init__(daemon=True)
        self.kubelet, self.log = kubelet, log
        self.taken = {}  # {namespace/name: uid}
        self.error = None

    def run(self):
        while True:
            joined = self.kubelet.status.joined
            if joined and joined.get("pods"):
                try:
                    self.sync(Api(joined))
                    self.error = None
                except (OSError, ValueError, KeyError) as error:
                    if str(error) != self.error:
                        self.log(f"pods of the API server: {error}")
                    self.error = str(error)
            time.sleep(POLL_SECONDS)

    def sync(self, api):
        there = api.pods(self.kubelet.options.node)
        for key, manifest in there.items():
            if key not in self.taken and (manifest.get("status") or {}).get("phase", "Pending") == "Pending":
                self.taken[key] = manifest["metadata"]["uid"]
                threading.Thread(target=self.live, args=(api, manifest), daemon=True).start()
        for key in [key for key in self.taken if key not in there]:
            del self.taken[key]
            docker("rm", "--force", *docker("ps", "--all", "--quiet", "--filter", f"label={LABEL}={key}").stdout.split())
            if key in self.kubelet.pods.pods:
                self.kubelet.pods.delete(key)

    def live(self, api, manifest):
        """A pod from its admission to its end."""
        try:
            self.admit_and_run(api, manifest)
        except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
            self.log(f"pod {key_of(manifest['metadata'])}: {error}")

    def admit_and_run(self, api, manifest):
        pod, pods = new_pod(manifest), self.kubelet.pods
        try:
            pods.run(pod)
        except AdmissionError as error:
            api.report(manifest, {"phase": "Failed", "reason": error.reason, "message": str(error)})
            return
        given, entry = pods.describe(pod)["container"], manifest["spec"]["containers"][0]
        if given is None:
            api.report(manifest, {"phase": "Pending", **states(entry, waiting=(pod["reason"], pod["message"]))})
            return
        if docker("image", "inspect", entry["image"]).returncode:
            # Nothing can be pulled from here: first ErrImagePull, then for ever this.
            why = ("ImagePullBackOff", f'Back-off pulling image "{entry["image"]}"')
            api.report(manifest, {"phase": "Pending", **states(entry, waiting=why)})
            return
        api.report(manifest, {"phase": "Running", "containerStatuses": [{"name": entry["name"], "state": {"running": {}}}]})
        code, message = run_container(key_of(pod), manifest["spec"], entry, given)
        if key_of(pod) not in self.taken:
            return  # deleted meanwhile
        pods.finish(key_of(pod))
        ended = {"exitCode": code, "reason": "Error" if code else "Completed", "message": message}
        api.report(manifest, {"phase": "Failed" if code else "Succeeded",
                              "containerStatuses": [{"name": entry["name"], "state": {"terminated": ended}}]})


def states(entry, waiting):
    reason, message = waiting
    return {"containerStatuses": [{"name": entry["name"], "state": {"waiting": {"reason": reason, "message": message}}}]}


def docker(*words):
    return subprocess.run(["docker", *words], capture_output=True, text=True, timeout=300, check=False)


def run_container(key, spec, entry, given):
    """(exit code, termination message) of one container."""
    security = {**(spec.get("securityContext") or {}), **(entry.get("securityContext") or {})}
    with tempfile.NamedTemporaryFile("r", prefix="termination-", delete=False) as told:
        os.chmod(told.name, 0o666)  # noqa: S103  as kubelet does it: the container may be anybody
        path = entry.get("terminationMessagePath") or TERMINATION_LOG
        words = ["run", "--rm", "--label", f"{LABEL}={key}", "--network", "none", "--volume", f"{told.name}:{path}"]
        words += ["--read-only"] if security.get("readOnlyRootFilesystem") else []
        words += ["--user", f"{security['runAsUser']}:{security.get('runAsGroup', 0)}"] if "runAsUser" in security else []
        words += [word for name in (security.get("capabilities") or {}).get("drop") or () for word in ("--cap-drop", name)]
        words += ["--security-opt", "no-new-privileges"] if security.get("allowPrivilegeEscalation") is False else []
        words += [word for name, value in given["env"].items() for word in ("--env", f"{name}={value}")]
        words += [word for one in given["devices"]
                  for word in ("--device", f"{one['host_path']}:{one['container_path']}:{one['permissions'] or 'rwm'}")]
        words += [word for one in given["mounts"]
                  for word in ("--volume", f"{one['host_path']}:{one['container_path']}:{'ro' if one['read_only'] else 'rw'}")]
        command = list(entry.get("command") or ())
        done = docker(*words, *(["--entrypoint", command[0]] if command else []), entry["image"], *command[1:], *entry.get("args", []))
        message = told.read()[:MESSAGE_BYTES]
    os.unlink(told.name)
    return done.returncode, message or (done.stderr.strip()[-MESSAGE_BYTES:] if done.returncode else "")
