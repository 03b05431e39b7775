# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Has the agent's image in a node's engine, without a registry. Private to the collection."""

import gzip
import hashlib
import os
import shutil
import zlib

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

#: Where kubelet's images are in containerd, whoever's it is.
NAMESPACE = "k8s.io"
SOCKETS = {"containerd": None, "k3s": "/run/k3s/containerd/containerd.sock", "rke2": "/run/k3s/containerd/containerd.sock"}
CTR = {"containerd": ["ctr"], "k3s": ["k3s", "ctr"], "rke2": ["/var/lib/rancher/rke2/bin/ctr"]}
LOOK_SECONDS = 60
LOAD_SECONDS = 900
BLOCK = 1 << 20


class Engine(object):
    """Command lines of one engine: has(name), load(path), remove(name)."""

    def __init__(self, name, look, load, remove):
        self.name, self.look, self.load, self.remove = name, look, load, remove


def engine_of(name, socket=None):
    """The commands of an engine."""
    if name == "docker":
        return Engine(name, lambda image: ["docker", "image", "inspect", "--format", "{{.Id}}", image],
                      lambda path: ["docker", "load", "--quiet", "--input", path], lambda image: ["docker", "image", "rm", image])
    if name == "crio":
        return Engine(name, lambda image: ["podman", "image", "inspect", "--format", "{{.Id}}", image],
                      lambda path: ["podman", "load", "--quiet", "--input", path], lambda image: ["podman", "image", "rm", image])
    address = socket or SOCKETS[name]
    ctr = CTR[name] + (["--address", address] if address else []) + ["--namespace", NAMESPACE]
    return Engine(name, lambda image: ctr + ["images", "list", "--quiet", "name==" + image],
                  lambda path: ctr + ["images", "import", path], lambda image: ctr + ["images", "rm", "--sync", image])


def has(engine, image, run):
    """Whether the engine has an image of this name. The name tells the content: another content has another tag."""
    done = run(engine.look(image), timeout=LOOK_SECONDS)
    if engine.name in ("docker", "crio"):
        if done.rc != 0 and "daemon" in done.stderr:
            raise failed(engine, "asked for its images", done)
        return done.rc == 0
    if done.rc != 0:
        raise failed(engine, "asked for its images", done)
    return image in done.stdout.split()


def failed(engine, what, done):
    """The error with the engine's last words."""
    said = (done.stderr or done.stdout).strip()[-600:]
    return FleetError("The engine %s could not be %s: %s" % (engine.name, what, said), "image_engine", object=engine.name,
                      observed="status %s" % done.rc, hint="Does it run? systemctl status %s" % engine.name)


def checked(path, sha256):
    """FleetError where the file is not what was sent."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(BLOCK), b""):
            digest.update(block)
    if digest.hexdigest() != sha256:
        raise FleetError("The image's archive arrived broken: its checksum is %s, not %s." % (digest.hexdigest(), sha256), "image_checksum",
                         object=path, hint="Run it again; is the node's disk full?")


def unpacked(path):
    """The archive without compression beside it: ctr of containerd 1.6 takes no other (measured)."""
    plain = path + ".tar"
    try:
        # The folder is everybody's: a file or link that somebody put there is not written through.
        descriptor = os.open(plain, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with gzip.open(path, "rb") as source, os.fdopen(descriptor, "wb") as target:
            shutil.copyfileobj(source, target, BLOCK)
    except (OSError, EOFError, zlib.error) as error:
        remove(plain)
        raise FleetError("The image's archive could not be unpacked: %s." % error, "image_unpack", object=plain,
                         hint="It takes about four times its size in %s; see `df -h` there." % os.path.dirname(path)) from error
    return plain


def remove(path):
    """Have no such file."""
    if path and os.path.exists(path):
        os.unlink(path)


def loaded(engine, options, run, check_mode):
    """Have it. With src the archive is there and is loaded; without, it is only told whether it is needed."""
    image, src, plain = options["name"], options["src"], None
    try:
        if has(engine, image, run):
            return {"changed": False, "name": image, "needed": False}
        if check_mode or not src:
            return {"changed": True, "name": image, "needed": True}
        checked(src, options["sha256"])
        plain = unpacked(src)
        done = run(engine.load(plain), timeout=LOAD_SECONDS)
        if done.rc != 0:
            raise failed(engine, "given the image", done)
        if not has(engine, image, run):
            raise FleetError("%s took the archive, but has no image %s." % (engine.name, image), "image_name", object=image,
                             observed=done.stdout.strip()[-300:], hint="Was the archive made by npu.fleet.image?")
        return {"changed": True, "name": image, "needed": False}
    finally:
        remove(src)
        remove(plain)


def absent(engine, image, run, check_mode):
    """Have no image of this name; one that a container uses stays."""
    if not has(engine, image, run):
        return {"changed": False, "name": image}
    if not check_mode:
        done = run(engine.remove(image), timeout=LOOK_SECONDS)
        if done.rc != 0:
            raise failed(engine, "rid of the image", done)
    return {"changed": True, "name": image}
