# SPDX-License-Identifier: GPL-3.0-or-later
"""What the playbook npu.fleet.plan keeps of an error, in its own words and without those of Ansible around them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

PLAYBOOK = Path(__file__).resolve().parents[3] / "playbooks/plan.yml"


def kept(tmp_path, failing):
    """npu_plan_error after ``failing``, a task, has failed in the block of the playbook."""
    (block,) = [task for task in yaml.safe_load(PLAYBOOK.read_text())[0]["tasks"] if "rescue" in task]
    show = {"ansible.builtin.copy": {"content": "{{ npu_plan_error }}", "dest": str(tmp_path / "error")}}
    play = [{"hosts": "localhost", "gather_facts": False, "tasks": [{"block": [failing], "rescue": [*block["rescue"], show]}]}]
    (tmp_path / "play.yml").write_text(yaml.safe_dump(play))
    place = next(path for path in sys.path if os.path.isdir(os.path.join(path, "ansible_collections/npu/fleet")))
    environment = dict(os.environ, ANSIBLE_COLLECTIONS_PATH=place, ANSIBLE_HOME=str(tmp_path / "ansible"), ANSIBLE_NOCOLOR="1")
    done = subprocess.run([sys.executable, "-m", "ansible", "playbook", "-i", "localhost,", "-c", "local", "play.yml",
                           "-e", f"ansible_python_interpreter={sys.executable}"],
                          env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    return (tmp_path / "error").read_text()


@pytest.mark.parametrize(("failing", "words"), [
    ({"ansible.builtin.set_fact": {"x": "{{ 'npu.lock.yml' | npu.fleet.lock_read }}"}},
     "The lock npu.lock.yml is not there (looked for in HERE). Write it with `ansible-playbook npu.fleet.lock`."),
    # Other versions of Ansible have no such words around it, and what is not from a filter has none at all.
    ({"ansible.builtin.fail": {"msg": "The filter plugin is old.\nAsk for help."}}, "The filter plugin is old.\nAsk for help."),
])
def test_the_sentence_alone_is_kept(tmp_path, failing, words):
    assert kept(tmp_path, failing) == words.replace("HERE", str(tmp_path))
