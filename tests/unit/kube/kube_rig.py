# SPDX-License-Identifier: GPL-3.0-or-later
"""The API stand-in where tests find it, and a token that must never be seen again."""

import os
import sys
from pathlib import Path

KUBE = Path(__file__).resolve().parents[2] / "kube"
sys.path.insert(0, str(KUBE))

from api_server import ApiServer  # noqa: F401
from kube_cluster import DAEMON_SET, POD  # noqa: F401
from kube_rules import RUNTIME_CLASS, ApiError  # noqa: F401

TOKEN = "canary-5f0d9b1e7a3c4d2e"  # noqa: S105


def environment(folder):
    """For Ansible with a home in a folder.

    What modules import has no kubernetes-validate, as with users: it is here for the manifests, the client imports it where it can, and
    that is a fifth of the time that a module takes. Nor does Ansible look a thousand times a second whether a task has ended.
    """
    without = folder / "without"
    without.mkdir(exist_ok=True)
    (without / "kubernetes_validate.py").write_text("raise ImportError\n")
    (folder / "ansible.cfg").write_text("[defaults]\ninternal_poll_interval = 0.01\n")
    place = next(path for path in sys.path if os.path.isdir(os.path.join(path, "ansible_collections/npu/fleet")))
    kept = {name: value for name, value in os.environ.items() if not name.upper().endswith("_PROXY")}
    paths = [str(without), *filter(None, [kept.get("PYTHONPATH")])]
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), "ANSIBLE_COLLECTIONS_PATH": place, "ANSIBLE_HOME": str(folder / "ansible"),
            "ANSIBLE_CONFIG": str(folder / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
