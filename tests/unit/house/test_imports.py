# SPDX-License-Identifier: GPL-3.0-or-later
"""Who may import what: nodes have only the standard library, the simulator knows nothing of the product."""

import ast
import re

import house
import limits
import pytest

NODE_FILES = house.python_files("plugins/modules/", "plugins/module_utils/")
HARDWARE = "plugins/module_utils/_hardware/"


def read(path):
    return (house.ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", NODE_FILES)
def test_node_code_imports_only_what_nodes_have(path):
    extra = limits.CONTROLLER_ONLY.get(path, ())
    assert house.foreign_node_imports(read(path), limits.NODE_ANSIBLE, limits.NEWER_THAN_36, extra) == []


@pytest.mark.parametrize("path", house.python_files(HARDWARE))
def test_hardware_stands_alone(path):
    assert house.foreign_hardware_imports(read(path), path[len(HARDWARE):].count("/") + 1) == []


@pytest.mark.parametrize("path", house.python_files(*limits.STAND_INS))
def test_stand_ins_know_nothing_of_the_product(path):
    assert house.product_references(read(path), limits.PRODUCT_IMPORTS, limits.PRODUCT_PATHS) == []


@pytest.mark.parametrize(("source", "count"), [
    ("import os, json\nfrom collections import namedtuple", 0),
    ("from ansible.module_utils.basic import AnsibleModule", 0),
    ("from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError", 0),
    ("from ansible_collections.npu.fleet.plugins.module_utils import _kube", 0),
    ("from ._families import FAMILIES", 0),
    ("import yaml", 1),
    ("def f():\n    import requests", 1),
    ("import dataclasses", 1),
    ("from ansible.module_utils.facts import x", 1),
    ("from ansible_collections.npu.fleet.plugins.plugin_utils import _plan", 1),
    ("from importlib import metadata", 1),
])
def test_foreign_node_imports(source, count):
    assert len(house.foreign_node_imports(source, limits.NODE_ANSIBLE, limits.NEWER_THAN_36)) == count


@pytest.mark.parametrize(("source", "count"), [
    ("import re\nfrom . import _pci\nfrom ._pci import x", 0),
    ("from .._errors import FleetError", 1),
    ("from ansible.module_utils.basic import AnsibleModule", 1),
    ("from ansible_collections.npu.fleet.plugins.module_utils._hardware import _pci", 1),
])
def test_foreign_hardware_imports(source, count):
    assert len(house.foreign_hardware_imports(source, 1)) == count


@pytest.mark.parametrize(("source", "count"), [
    ('"""Replaces what plugins/modules needs."""\nimport json', 0),
    ("from ansible_collections.npu.fleet.plugins.module_utils import _kube", 1),
    ("import npu_agent.config", 1),
    ('path = ROOT / "plugins/module_utils/_hardware"', 1),
])
def test_product_references(source, count):
    assert len(house.product_references(source, limits.PRODUCT_IMPORTS, limits.PRODUCT_PATHS)) == count


AGENT = "roles/npu_agent/files/npu_agent/"
# `npu-agent labels` is a process of its own, with no metrics.
SERVED = [path for path in house.python_files(AGENT) if not path[len(AGENT):].startswith("labels")]
SERVERS = re.search(r"^SERVERS = (\(.+\))$", read(AGENT + "metrics.py"), re.MULTILINE).group(1)


def servers_in(source):
    """Modules that are imported anywhere in this source, lazily too, and for which metrics.py has stand-ins while it loads its library."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.update([node.module, *(f"{node.module}.{alias.name}" for alias in node.names)])
    return sorted(names & set(ast.literal_eval(SERVERS)))


@pytest.mark.parametrize("path", SERVED)
def test_nobody_needs_what_metrics_stand_in_for(path):
    """At the first scrape these modules are placeholders for a moment: a thread that imported one then would have that for ever."""
    assert servers_in(read(path)) == []


@pytest.mark.parametrize(("source", "found"), [
    ("import os", []), ("def f():\n    import ssl", ["ssl"]), ("from http import server", ["http.server"]),
    ("from urllib.request import urlopen", ["urllib.request"]), ("from . import ssl", []), ("import urllib.parse", []),
])
def test_servers_in(source, found):
    assert servers_in(source) == found
