# SPDX-License-Identifier: GPL-3.0-or-later
"""What each task sends to a node: module and everything it imports. 1,000 nodes pay for each byte."""

import json
import subprocess
import sys
from pathlib import Path

import house
import limits
import pytest

import ansible_collections


@pytest.fixture(scope="module")
def sizes():
    # The folder that holds ansible_collections/npu/fleet: wherever this run imports the collection from.
    root = next(Path(path).parent for path in ansible_collections.__path__ if (Path(path) / "npu/fleet/galaxy.yml").exists())
    names = [f"npu.fleet.{module}" for module in house.module_names()]
    command = [sys.executable, Path(__file__).with_name("payload.py"), root, "ansible.builtin.ping", "ansible.builtin.setup", *names]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("module", house.module_names())
def test_module_is_light(sizes, module):
    # oci_runtime is documentation only: its action plugin sends oci_runtime_node.
    assert sizes[f"npu.fleet.{module}"] < limits.PAYLOAD_BYTES_OF.get(module, limits.PAYLOAD_BYTES)


def test_the_limit_can_be_missed(sizes):
    assert sizes["ansible.builtin.ping"] < limits.PAYLOAD_BYTES
    # What setup pulls in more than ping (module_utils.facts) takes each module over its limit.
    facts = sizes["ansible.builtin.setup"] - sizes["ansible.builtin.ping"]
    for module in house.module_names():
        # The documentation of an action plugin imports nothing.
        documentation = sizes[f"npu.fleet.{module}"] < sizes["ansible.builtin.ping"]
        assert documentation or sizes[f"npu.fleet.{module}"] + facts > limits.PAYLOAD_BYTES_OF.get(module, limits.PAYLOAD_BYTES)
