# SPDX-License-Identifier: GPL-3.0-or-later
"""A base for the agent's image without a registry: Debian's essential packages and Python by mmdebstrap, imported into an engine.

    base.py --docker unix:///PATH/docker.sock [--cache DIR]

Prints the image's name. The tar is kept under a name made of what shaped it (about 35 s to build, 2 s to import).
"""

import argparse
import hashlib
import os
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests/nodes"))
from npu_nodes.base import lines_for_mirror

SUITE = "bookworm"
# libcjson1 is of the simulated libdcmi.so, which the test mounts as the host has it; the agent has no use for it.
PACKAGES = ("libcjson1", "libpython3-stdlib", "libstdc++6", "python3-minimal")
LEFT_OUT = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/info/*")
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SECONDS = 1800


def key():
    """What shaped it, as a word."""
    return f"{SUITE}-{hashlib.sha256(chr(10).join([SUITE, *PACKAGES, *LEFT_OUT]).encode()).hexdigest()[:12]}"


def build(cache):
    """The tar of the base."""
    path = cache / f"{key()}.tar"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        argv = ["mmdebstrap", "--variant=essential", "--format=tar", "--include=" + ",".join(PACKAGES),
                "--aptopt=APT::Install-Recommends \"false\"", "--aptopt=Acquire::Retries \"3\""]
        argv += [f"--dpkgopt=path-exclude={pattern}" for pattern in LEFT_OUT]
        with open(cache / "build.log", "wb") as log:
            done = subprocess.run([*argv, SUITE, str(new), "-"], input="\n".join(lines_for_mirror(SUITE)).encode() + b"\n", stdout=log,
                                  stderr=log, timeout=SECONDS, check=False)
        if done.returncode:
            sys.exit(f"mmdebstrap failed; see {log.name}")
        new.rename(path)
    return path


def load(docker, cache):
    """Have it in this engine; its name."""
    tag = f"npu-fleet-base:{key()}"
    env = {**os.environ, "DOCKER_HOST": docker}
    path = build(cache)
    known = subprocess.run(["docker", "image", "inspect", tag], env=env, capture_output=True, check=False)
    if known.returncode:
        subprocess.run(["docker", "import", "--change", f"ENV {PATH}", str(path), tag], env=env, check=True, stdout=subprocess.DEVNULL,
                       timeout=SECONDS)
    return tag


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docker", required=True, help="the engine's socket, as DOCKER_HOST takes it")
    parser.add_argument("--cache", type=Path, default=REPO / ".build/image-base")
    options = parser.parse_args()
    print(load(options.docker, options.cache))


if __name__ == "__main__":
    main()
