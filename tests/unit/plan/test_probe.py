# SPDX-License-Identifier: GPL-3.0-or-later
"""The raw probe's answer, in words."""

import pytest

from ansible_collections.npu.fleet.plugins.plugin_utils._probe import cores_for, explain, lowest_python, read_probe


@pytest.mark.parametrize(
    ("core", "lowest"), [("2.16.14", (3, 6)), ("2.17.1", (3, 7)), ("2.19.14", (3, 8)), ("2.20.0", (3, 9)), ("2.21.5", (3, 9))]
)
def test_lowest_target_python_of_a_core(core, lowest):
    assert lowest_python(core) == lowest


def test_good_node_behind_a_login_banner():
    answer = read_probe("Welcome!\r\nos=Debian GNU/Linux 12\r\narch=x86_64\r\npython=/usr/bin/python3 3.11\r\n", "2.19.14")
    assert answer == {
        "os": "Debian GNU/Linux 12",
        "arch": "x86_64",
        "python": "/usr/bin/python3",
        "python_version": "3.11",
        "problem": None,
    }


def test_old_python_is_refused_with_the_cores_that_can():
    problem = read_probe("os=Kylin V10\narch=aarch64\npython=/usr/bin/python3 3.7\n", "2.19.14")["problem"]
    assert "Python 3.7" in problem
    assert "3.8 or newer" in problem
    assert "ansible-core 2.16 or 2.17" in problem
    assert "ansible_python_interpreter" in problem


def test_python_3_10_is_not_taken_for_older_than_3_9():
    assert read_probe("os=x\narch=y\npython=/usr/bin/python3 3.10\n", "2.21.0")["problem"] is None


def test_no_python():
    answer = read_probe("os=openEuler 22.03\narch=aarch64\n", "2.19.14")
    assert answer["python"] is None
    assert "dnf install python3" in answer["problem"]


def test_a_python_that_no_core_can_use_gives_no_core():
    assert cores_for((3, 5)) == []
    assert "run the playbook with" not in read_probe("os=x\narch=y\npython=/usr/bin/python3 3.5\n", "2.19.0")["problem"]


GOOD = "os=Debian 12\narch=x86_64\npython=/usr/bin/python3 3.11\n"


@pytest.mark.parametrize(("uid", "words"), [("0", None), ("1000", "as uid 1000, and packages need root. Set ansible_become: true")])
def test_one_command_as_root_before_anything_else(uid, words):
    problem = read_probe(f"uid={uid}\n{GOOD}", "2.19.14")["problem"]
    assert problem is None if words is None else words in problem


# H11: texts of sudo 1.9 and of ansible-core 2.19.
@pytest.mark.parametrize(("result", "advice"), [
    ({"msg": "non-zero return code", "stderr": "sudo: sorry, you must have a tty to run sudo\n"}, "requiretty"),
    ({"msg": "Missing sudo password"}, "with -K"),
    ({"msg": "non-zero return code", "stderr": "sudo: a password is required"}, "with -K"),
    ({"msg": "Incorrect sudo password"}, "with -K"),
    ({"stderr": "ops is not in the sudoers file."}, "/etc/sudoers.d"),
    ({"module_stderr": "/bin/sh: 1: sudo: not found"}, "ansible_become_method: su"),
    ({"msg": "something else"}, "runs no command: something else"),
])
def test_what_keeps_ansible_from_becoming_root_is_said_in_words(result, advice):
    assert advice in explain(result)
    assert next(iter(reversed(result.values()))).strip() in explain(result)
