# SPDX-License-Identifier: GPL-3.0-or-later
"""Who may import what: nodes have only the standard library, the simulator knows nothing of the product."""

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
