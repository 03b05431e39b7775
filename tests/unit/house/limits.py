# SPDX-License-Identifier: GPL-3.0-or-later
"""Numbers and lists that the house tests hold the tree to."""

# Lines of a source file. The design says "about 400"; beyond this a file has two subjects.
FILE_LINES = 450
# The DCMI child is sent to its own process as source text, so it can import nothing of ours and stays one file.
FILE_LINES_OF = {"plugins/module_utils/_hardware/_dcmi.py": 660}
LENGTH_SUFFIXES = (".py", ".yml", ".yaml", ".c", ".h", ".sh", ".j2")
NO_LENGTH = ("tests/fixtures/", "tests/vectors/", "changelogs/changelog.yaml")

# Bytes of a module as it goes over the wire (AnsiballZ, base64 in its wrapper). ansible.builtin.ping is about 177 kB on ansible-core 2.19;
# what pulls in module_utils.facts or urls starts at about 340 kB.
PAYLOAD_BYTES = 230_000
# These look at the whole node in one call, which is cheaper than a second task: half of their code is the detector and the packages, and
# a quarter the six engines, of which only the node knows which it has.
PAYLOAD_BYTES_OF = {"npu_gates": 465_000, "npu_info": 425_000, "npu_package": 360_000, "oci_runtime_node": 280_000}

# Files with a comment syntax must carry the licence. Data that a test reads byte by byte has none.
SPDX = "SPDX-License-Identifier: GPL-3.0-or-later"
SPDX_SUFFIXES = (".py", ".yml", ".yaml", ".c", ".h", ".sh", ".j2", ".toml", ".cfg", ".service", ".conf", ".txt")
SPDX_NAMES = ("Makefile", ".ansible-lint", ".yamllint", ".gitignore", "run")
# check_tools.conf is a list of words that a simulated package reads, as the vendor's does.
NO_SPDX = ("tests/fixtures/", "tests/vectors/", "tests/simulator/packages/driver/check_tools.conf",
           "changelogs/changelog.yaml", "changelogs/.plugin-cache.yaml", ".gitignore")
PLUGIN_HEADER = (
    "# Copyright (c) 2026 npu.fleet contributors",
    "# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)",
    "# SPDX-License-Identifier: GPL-3.0-or-later",
)

# What node code may import beside the standard library of Python 3.6 and its own module_utils.
NODE_ANSIBLE = ("ansible.module_utils.basic",)
NEWER_THAN_36 = ("dataclasses", "contextvars", "importlib.resources", "importlib.metadata", "graphlib", "zoneinfo", "tomllib")
# Files of module_utils that only run on the controller (delegated to localhost), and what they use there.
CONTROLLER_ONLY = {"plugins/module_utils/_kube.py": ("kubernetes", "urllib3", "yaml")}

# Test material that must know nothing of the product: it would repeat its mistakes.
STAND_INS = ("tests/simulator/", "tests/kube/", "tests/kubelet/", "tests/nodes/")
PRODUCT_IMPORTS = ("ansible_collections.npu", "npu_agent")
PRODUCT_PATHS = ("plugins/module_utils", "plugins/modules", "plugins/plugin_utils", "roles/npu_")

# Never in a role or playbook.
BANNED_TASK_KEYS = ("ignore_errors", "shell", "ansible.builtin.shell", "ansible.legacy.shell")
