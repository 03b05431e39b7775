# SPDX-License-Identifier: GPL-3.0-or-later
"""The lookup npu.fleet.release in a play: options, variables, errors."""

import json
import os
import subprocess
import sys

PLAY = """
- hosts: localhost
  connection: local
  gather_facts: false
  vars:
    row: "{{ lookup('npu.fleet.release', '25.5.0', family='a2') }}"
  tasks:
    - ansible.builtin.assert:
        that:
          - "row == {'driver': '25.5.0', 'firmware': '7.8.0.5.216', 'cann': '8.5.0', 'docker_runtime': '7.3.0'}"
          - lookup('npu.fleet.release', family='a2', driver='25.5.0') == row
          - query('npu.fleet.release', '25.5.0', '24.1.0', family='a2') | map(attribute='driver') | list == ['25.5.0', '24.1.0']
          - lookup('npu.fleet.release', '27.0.0', family='a2', catalog=[folder]).firmware == '9.9.0.1.220'
    - ansible.builtin.assert:
        that:
          - lookup('npu.fleet.release', '27.0.0', family='a2').firmware == '9.9.0.1.220'
          - lookup('npu.fleet.release', '25.5.0', family='a2', cann='9.1.0') == dict(row, cann='9.1.0')
      vars:
        npu_fleet_catalog: ["{{ folder }}"]
        npu_fleet_allow_unlisted_reason: tested by us
    - ansible.builtin.debug:
        msg: "{{ lookup('npu.fleet.release', family='a2', driver='25.5.0', cann='9.1.0') }}"
      vars:
        npu_fleet_allow_unlisted_reason: " "
"""
ROW = """
releases:
  - release: "27.0.0"
    date: "2026-09"
    sources: ["our own test"]
    sets: [{families: [a2], driver: ["27.0.0"], firmware: ["9.9.0.1.220"], cann: ["9.2.0"], docker_runtime: ["27.0.0"]}]
"""


def test_in_a_play(tmp_path):
    (tmp_path / "play.yml").write_text(PLAY)
    (tmp_path / "catalog").mkdir()
    (tmp_path / "catalog" / "site.yml").write_text(ROW)
    place = next(path for path in sys.path if os.path.isdir(os.path.join(path, "ansible_collections/npu/fleet")))
    environment = dict(os.environ, ANSIBLE_COLLECTIONS_PATH=place, ANSIBLE_HOME=str(tmp_path / "ansible"), ANSIBLE_NOCOLOR="1")
    command = [sys.executable, "-m", "ansible", "playbook", "-i", "localhost,", str(tmp_path / "play.yml"),
               "-e", json.dumps({"folder": str(tmp_path / "catalog")})]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert "ok=2" in done.stdout, done.stdout + done.stderr
    # The last task fails, and says what is allowed.
    assert "failed=1" in done.stdout
    assert "row 25.5.0 (2026-01) allows cann 8.5.0 with driver 25.5.0" in " ".join((done.stdout + done.stderr).split())
