# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real containers for gate L2, through the engine of the node. Private to the collection.

Each class has ``prepare() -> error text or None``, ``start(number, given, timeout) -> {"started", "nodes", "timed_out", "error",
"seconds"}`` and ``clean() -> [what could not be removed]``; ``given`` is what the container gets: ``env`` (a dict), ``devices`` and
``mounts`` as a device plugin answers them. ``nodes`` has each name below the container's /dev with its device number as "major:minor"
(None: no device). The container is the node's own ``ls`` over an empty root: no image and no registry is needed. What an earlier run left
that was killed is removed first.
"""

import json
import os
import re
import shutil
import stat
import time

from ansible_collections.npu.fleet.plugins.module_utils._engine_pick import socket_of
from ansible_collections.npu.fleet.plugins.module_utils._engine_secrets import mask_text
from ansible_collections.npu.fleet.plugins.module_utils._files import find_program, make_folder, under, write_private
from ansible_collections.npu.fleet.plugins.module_utils._gates_container import VARIABLE

NAME = "npu-fleet-gate"
LABEL = "npu.fleet=gate"
#: Folders of the node that a container needs to run the node's own `ls`; read-only inside.
BINDS = ("/usr", "/bin", "/lib", "/lib64")
#: An archive without members: two zero blocks (POSIX pax, "end-of-archive").
EMPTY_TAR = "\0" * 1024
#: In place of a runtime's name and program: the engine's own, whatever that is.
OWN = ""
#: Programs of usual runtimes, for engines that are not asked themselves.
OCI_RUNTIMES = ("runc", "crun")
#: Seconds of a command that cleans up.
CLEANING = 30
#: Every container has these in its /dev, so it has started when they are seen.
_ALWAYS = ("null", "zero")
_LIST = ["/bin/ls", "-lnR", "/dev"]
#: What comes before the entries of a folder.
_FOLDER = re.compile(r"^/dev(/[^:]*)?:$")
#: A line of it: "crw-rw---- 1 0 0 236, 3 Nov 30 12:00 davinci3"; other kinds of files have a size there (POSIX, ls).
_LINE = re.compile(r"^([a-z-])[^ ]{9,} +[0-9]+ +[^ ]+ +[^ ]+ +(?:([0-9]+), *([0-9]+)|[0-9]+) +.*?([^ ]+)(?: -> .*)?$")
_TOP = ("PATH=/usr/sbin:/usr/bin:/sbin:/bin",)


def engine_for(run, engine, runtime, path, work, *, root="/"):
    """The class for an entry of ``npu.engines``; ``path`` is the runtime's program, ``work`` a folder of our own on the node.

    ``runtime`` OWN: the one that the engine takes where nobody names one.
    """
    name = engine["name"]
    if name == "docker":
        return Docker(run, find_program("docker", root) or "docker", runtime, work)
    if name in ("containerd", "k3s", "rke2"):
        return Containerd(run, client_of(name, root), socket_of(engine), OWN if runtime == OWN else path, work)
    # These have no client of their own that starts something without an image.
    return Bundle(run, next(filter(None, (find_program(name, root) for name in OCI_RUNTIMES)), None) if runtime == OWN else path, work)


def client_of(name, root="/"):
    """Words that call ctr; k3s has it inside, rke2 beside its data."""
    if name == "k3s" and find_program("k3s", root):
        return [find_program("k3s", root), "ctr"]
    inside = under(root, "/var/lib/rancher/rke2/bin/ctr")
    if name == "rke2" and os.path.isfile(inside):
        return [inside]
    return [find_program("ctr", root) or "ctr"]


def reading(result, timeout):
    """What a command that lists /dev in a container tells. Pure."""
    nodes, folder = {}, ""
    for line in result.stdout.splitlines():
        match = _FOLDER.match(line)
        if match:
            folder = (match.group(1) or "/")[1:]
            folder += "/" if folder else ""
            continue
        match = _LINE.match(line)
        if match:
            nodes[folder + match.group(4)] = "%s:%s" % match.group(2, 3) if match.group(1) in "bc" else None
    started = all(name in nodes for name in _ALWAYS)
    error = None
    if result.timed_out:
        error = "the container did not end within %d s" % timeout
    elif not started:
        error = _last(result.stderr) or "ended with %s and no answer" % result.rc
    return {"started": started, "nodes": nodes if started else {}, "timed_out": result.timed_out, "error": error, "seconds": result.seconds}


def _last(text):
    """The end of an error text: engines wrap the reason in their own words, and it stands last."""
    return mask_text(" ".join(text.split())[-400:])


def shown(name):
    """Whether the value of a variable may be seen: those of plugin and runtime name chips, any other may be a secret."""
    return name.startswith(("ASCEND_", "NPU_FLEET_"))


def environment(given):
    return ["%s=%s" % item for item in sorted(given["env"].items())]


def _listing(listed, program):
    """``(names that a client listed, [why it did not])``: one that lists nothing because it failed has not said that nothing is left."""
    if listed.rc == 0 and not listed.timed_out:
        return listed.stdout.split(), []
    return [], ["unknown, because %s does not list containers: %s" % (
        program, _last(listed.stderr) or "no answer within %d s" % CLEANING)]


class _Engine(object):
    """What all have in common."""

    def start(self, number, given, timeout):
        """One container that gets what is given; what it saw."""
        raise NotImplementedError

    def ask(self, number, value, timeout):
        """One container that asks for chips by the vendor's variable."""
        return self.start(number, {"env": {} if value is None else {VARIABLE: value}, "devices": [], "mounts": []}, timeout)


class Docker(_Engine):
    """`docker run` of an empty image that is made on the spot."""

    def __init__(self, run, client, runtime, work):
        self._run = run
        self._client = client
        self._runtime = runtime
        self._work = work
        self._image = NAME

    def prepare(self):
        self.clean()
        made = self._run([self._client, "import", "-", NAME], CLEANING, stdin=EMPTY_TAR)
        if made.timed_out or made.rc != 0:
            return "docker import of an empty image failed: %s" % (_last(made.stderr) or "no answer within %d s" % CLEANING)
        # An id is never looked for in a registry; the flag that forbids that is not known to docker before 20.10.
        self._image = next((word for word in made.stdout.split() if word.startswith("sha256:")), NAME)
        return None

    def start(self, number, given, timeout):
        argv = [self._client, "run", "--rm", "--name", "%s-%d" % (NAME, number), "--label", LABEL, "--network", "none"]
        argv += ["--runtime", self._runtime] if self._runtime else []
        for path in BINDS:
            if os.path.isdir(path):
                argv += ["--volume", "%s:%s:ro" % (path, path)]
        for entry in given["mounts"]:
            argv += ["--volume", "%s:%s:%s" % (entry["host_path"], entry["container_path"], "ro" if entry["read_only"] else "rw")]
        for entry in given["devices"]:
            argv += ["--device", "%s:%s:%s" % (entry["host_path"], entry["container_path"], entry["permissions"] or "rwm")]
        secret = {name: value for name, value in given["env"].items() if not shown(name)}
        broken = sorted(name for name, value in secret.items() if "\n" in value or "\r" in value)
        if broken:
            error = "docker run takes no value with a line break, and %s has one" % ", ".join(broken)
            return {"started": False, "nodes": {}, "timed_out": False, "error": error, "seconds": 0.0}
        for entry in environment(given):
            argv += ["--env", entry] if shown(entry) else []
        if not secret:
            return reading(self._run(argv + [self._image] + _LIST, timeout), timeout)
        # Everybody on the node can read the words of a command.
        path = os.path.join(self._work, "env")
        write_private(path, "".join(entry + "\n" for entry in environment({"env": secret})).encode("utf-8"))
        try:
            return reading(self._run(argv + ["--env-file", path, self._image] + _LIST, timeout), timeout)
        finally:
            os.unlink(path)

    def clean(self):
        left, unknown = self._containers()
        if left:
            self._run([self._client, "rm", "--force", "--volumes"] + left, CLEANING)
            left, unknown = self._containers()
        self._run([self._client, "rmi", "--force", NAME], CLEANING)
        shutil.rmtree(self._work, ignore_errors=True)
        return ["container %s" % one for one in left] + unknown

    def _containers(self):
        filters = ["--filter", "label=%s" % LABEL]
        return _listing(self._run([self._client, "ps", "--all", "--quiet"] + filters, CLEANING), self._client)


class _WithSpec(_Engine):
    """Containers from a spec of our own: no command line has to carry commas, and no image store is touched."""

    def __init__(self, run, path, work):
        self._run = run
        self._path = path
        self._work = work

    def clean(self):
        """Remove what an earlier run left; return what could not be removed."""
        raise NotImplementedError

    def prepare(self):
        if self._path != OWN and not os.path.isabs(self._path or ""):
            return "nothing says which program the runtime is (%s)" % self._path
        left = self.clean()
        if left:
            return "remains of an earlier run cannot be removed: %s" % ", ".join(left)
        make_folder(self._rootfs(), 0o755)
        for name in ("proc", "dev", "npu-fleet"):
            make_folder(os.path.join(self._rootfs(), name), 0o755)
        for path in BINDS:
            inside = os.path.join(self._rootfs(), path[1:])
            if os.path.islink(path):
                os.symlink(os.readlink(path), inside)
            elif os.path.isdir(path):
                make_folder(inside, 0o755)
        return None

    def _rootfs(self):
        return os.path.join(self._work, "rootfs")

    def _bundle(self, number, given, argv):
        """Write the spec of one container; return its folder."""
        folder = os.path.join(self._work, "%d" % number)
        make_folder(folder, 0o700)
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as stream:
            json.dump(spec(self._rootfs(), "%s-%d" % (NAME, number), given, argv), stream)
        return folder

    def _remove_work(self):
        """Remove our folder, but never through a mount that somebody's runtime has left in it."""
        mounts = [line.split(" ")[4] for line in _lines("/proc/self/mountinfo") if len(line.split(" ")) > 4]
        inside = [path for path in mounts if path.startswith(self._work + "/")]
        if inside:
            return ["mount %s" % path for path in inside]
        shutil.rmtree(self._work, ignore_errors=True)
        return ["folder %s" % self._work] if os.path.exists(self._work) else []


class Containerd(_WithSpec):
    """`ctr run` in a namespace of its own, which kubelet does not look into."""

    def __init__(self, run, client, socket, path, work):
        _WithSpec.__init__(self, run, path, work)
        self._ctr = list(client) + ["--address", socket, "--namespace", NAME]

    def start(self, number, given, timeout):
        bundle = self._bundle(number, given, _LIST)
        argv = ["run", "--rm"] + (["--runc-binary", self._path] if self._path else [])
        argv += ["--config", os.path.join(bundle, "config.json"), "%s-%d" % (NAME, number)]
        return reading(self._run(self._ctr + argv, timeout), timeout)

    def clean(self):
        left, unknown = self._containers()
        for one in left:
            self._run(self._ctr + ["tasks", "delete", "--force", one], CLEANING)
            self._run(self._ctr + ["containers", "delete", one], CLEANING)
        if left:
            left, unknown = self._containers()
        if not left and not unknown:
            self._run(self._ctr + ["namespaces", "remove", NAME], CLEANING)
        return ["container %s" % one for one in left] + unknown + self._remove_work()

    def _containers(self):
        return _listing(self._run(self._ctr + ["containers", "list", "--quiet"], CLEANING), self._ctr[0])


class Bundle(_WithSpec):
    """The runtime itself, called as an engine calls an OCI runtime: create, start, state, delete."""

    def start(self, number, given, timeout):
        began, name = time.monotonic(), "%s-%d" % (NAME, number)
        # What the container prints goes to whoever called create, and that has ended by then.
        bundle = self._bundle(number, given, ["/bin/sh", "-c", " ".join(_LIST) + " >/npu-fleet/seen"])
        told = os.path.join(self._rootfs(), "npu-fleet", "seen")
        if os.path.exists(told):
            os.unlink(told)
        try:
            for argv in (["create", "--bundle", bundle, name], ["start", name]):
                done = self._run([self._path] + argv, timeout)
                if done.timed_out or done.rc != 0:
                    return reading(done._replace(stdout=""), timeout)
            ended = self._wait(name, began + timeout)
            return reading(done._replace(stdout="\n".join(_lines(told)), timed_out=not ended, seconds=time.monotonic() - began), timeout)
        finally:
            self._run([self._path, "delete", "--force", name], CLEANING)

    def _wait(self, name, until):
        while time.monotonic() < until:
            shown = self._run([self._path, "state", name], CLEANING)
            if shown.rc != 0 or '"stopped"' in shown.stdout:
                return True
            time.sleep(0.05)
        return False

    def clean(self):
        left = [name for name in _listed(self._work) if name.isdigit()]
        for number in left:
            self._run([self._path, "delete", "--force", "%s-%s" % (NAME, number)], CLEANING)
        return self._remove_work()


def devices_in_spec(given):
    """(devices, rules for the control group) of an OCI runtime spec. A path that is no device is left to the runtime's own words."""
    devices, rules = [], []
    for entry in given["devices"]:
        found = os.stat(entry["host_path"])
        kind = "b" if stat.S_ISBLK(found.st_mode) else "c"
        major, minor = os.major(found.st_rdev), os.minor(found.st_rdev)
        path = entry["container_path"]
        devices.append({"path": path, "type": kind, "major": major, "minor": minor, "fileMode": 0o666, "uid": 0, "gid": 0})
        rules.append({"allow": True, "type": kind, "major": major, "minor": minor, "access": entry["permissions"] or "rwm"})
    return devices, rules


def spec(rootfs, name, given, argv):
    """An OCI runtime spec (config.json, version 1.0) for a container without network, rights and writable host folders but those given."""
    devices, rules = devices_in_spec(given)
    mounts = [
        {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "strictatime", "mode=755", "size=65536k"]},
    ]
    mounts += [
        {"destination": path, "type": "bind", "source": path, "options": ["rbind", "ro"]}
        for path in BINDS if os.path.isdir(path) and not os.path.islink(path)
    ]
    mounts += [
        {"destination": entry["container_path"], "type": "bind", "source": entry["host_path"],
         "options": ["rbind", "ro" if entry["read_only"] else "rw"]}
        for entry in given["mounts"]
    ]
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False, "user": {"uid": 0, "gid": 0}, "args": argv, "env": list(_TOP) + environment(given), "cwd": "/",
            "noNewPrivileges": True,
            "capabilities": {kind: [] for kind in ("bounding", "effective", "inheritable", "permitted")},
        },
        "root": {"path": rootfs, "readonly": False},
        "hostname": "gate",
        "mounts": mounts,
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "network")],
            # At the top, so that no parent folder of it is left in the tree of control groups.
            "cgroupsPath": "/" + name,
            "devices": devices,
            "resources": {"devices": [{"allow": False, "access": "rwm"}] + rules},
        },
    }


def _lines(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read().splitlines()
    except OSError:
        return []


def _listed(folder):
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
