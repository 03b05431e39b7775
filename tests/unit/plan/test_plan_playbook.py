# SPDX-License-Identifier: GPL-3.0-or-later
"""What the playbook npu.fleet.plan keeps of an error, in its own words and without those of Ansible around them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

PLAYBOOK = Path(__file__).resolve().parents[3] / "playbooks/plan.yml"


CASES = {
    "filter": ({"ansible.builtin.set_fact": {"x": "{{ 'npu.lock.yml' | npu.fleet.lock_read }}"}},
               "The lock npu.lock.yml is not there (looked for in HERE). Write it with `ansible-playbook npu.fleet.lock`."),
    # Other versions of Ansible have no such words around it, and what is not from a filter has none at all.
    "plain": ({"ansible.builtin.fail": {"msg": "The filter plugin is old.\nAsk for help."}}, "The filter plugin is old.\nAsk for help."),
}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A folder with npu_plan_error of each case, after its task has failed in the block of the playbook."""
    folder = tmp_path_factory.mktemp("plan")
    (block,) = [task for task in yaml.safe_load(PLAYBOOK.read_text())[0]["tasks"] if "rescue" in task]
    plays = []
    for name, (failing, _words) in CASES.items():
        show = {"ansible.builtin.copy": {"content": "{{ npu_plan_error }}", "dest": str(folder / f"{name}.txt")}}
        plays.append({"hosts": "localhost", "gather_facts": False, "tasks": [{"block": [failing], "rescue": [*block["rescue"], show]}]})
    (folder / "play.yml").write_text(yaml.safe_dump(plays))
    place = next(path for path in sys.path if os.path.isdir(os.path.join(path, "ansible_collections/npu/fleet")))
    environment = dict(os.environ, ANSIBLE_COLLECTIONS_PATH=place, ANSIBLE_HOME=str(folder / "ansible"), ANSIBLE_NOCOLOR="1")
    done = subprocess.run([sys.executable, "-m", "ansible", "playbook", "-i", "localhost,", "-c", "local", "play.yml",
                           "-e", f"ansible_python_interpreter={sys.executable}"],
                          env=environment, cwd=folder, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.parametrize("name", CASES)
def test_the_sentence_alone_is_kept(kept, name):
    assert (kept / f"{name}.txt").read_text() == CASES[name][1].replace("HERE", str(kept))
