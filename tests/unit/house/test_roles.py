# SPDX-License-Identifier: GPL-3.0-or-later
"""Roles: what is promised in the argument specs is what defaults/main.yml does, and tasks keep to the house."""

import house
import limits
import pytest

ROLES = house.role_names()
TASK_FILES = [name for name in house.tree() if name.endswith((".yml", ".yaml")) and name.startswith(("roles/", "playbooks/"))
              and ("/tasks/" in name or "/handlers/" in name or name.startswith("playbooks/"))]


def entry_points(role):
    return house.load_yaml(f"roles/{role}/meta/argument_specs.yml")["argument_specs"]


def defaults(role):
    path = f"roles/{role}/defaults/main.yml"
    return (house.load_yaml(path) if (house.ROOT / path).exists() else None) or {}


@pytest.mark.parametrize("role", ROLES)
def test_argument_spec_equals_defaults(role):
    options = {}
    for point in entry_points(role).values():
        options.update(point.get("options") or {})
    assert house.spec_against_defaults(options, defaults(role)) == []


@pytest.mark.parametrize("role", ROLES)
def test_role_is_documented(role):
    readme = house.ROOT / "roles" / role / "README.md"
    assert readme.exists()
    assert role in readme.read_text(encoding="utf-8").splitlines()[0]
    for name, point in entry_points(role).items():
        assert point.get("short_description"), name
        assert (house.ROOT / "roles" / role / "tasks" / f"{name}.yml").exists()


@pytest.mark.parametrize("role", ROLES)
def test_variables_carry_the_name_of_the_role(role):
    names = list(defaults(role)) + [name for point in entry_points(role).values() for name in point.get("options") or {}]
    for path in house.tree():
        if path.startswith(f"roles/{role}/vars/"):
            names += list(house.load_yaml(path) or {})
        if path.startswith((f"roles/{role}/tasks/", f"roles/{role}/handlers/")):
            names += [name for task in house.tasks(house.load_yaml(path)) for name in house.names_set_by(task)]
    assert [name for name in names if not house.has_role_prefix(name, role)] == []


@pytest.mark.parametrize("path", TASK_FILES)
def test_no_failure_is_ignored_and_no_shell_is_used(path):
    found = [f"{task.get('name')}: {key}" for task in house.tasks(house.load_yaml(path)) for key in limits.BANNED_TASK_KEYS if key in task]
    assert found == []


@pytest.mark.parametrize(("options", "given", "part"), [
    ({}, {"r_a": 1}, "not in the spec"),
    ({"r_a": {"default": 1}}, {}, "defaults/main.yml has none"),
    ({"r_a": {}}, {"r_a": 1}, "the spec has no default"),
    ({"r_a": {"default": 1}}, {"r_a": 2}, "the spec says 1"),
    ({"r_a": {"default": 1}}, {"r_a": True}, "the spec says 1"),
    ({"r_a": {"default": 1, "required": True}}, {"r_a": 1}, "required and with a default"),
])
def test_the_comparison_sees_each_kind_of_difference(options, given, part):
    described = {name: {"description": "x", "type": "int", **option} for name, option in options.items()}
    assert [part in line for line in house.spec_against_defaults(described, given)] == [True]


def test_banned_keys_are_found_in_blocks_too():
    document = [{"block": [{"rescue": [{"shell": "x"}]}]}, {"hosts": "all", "tasks": [{"ignore_errors": True}]}]
    assert sum(key in task for task in house.tasks(document) for key in limits.BANNED_TASK_KEYS) == 2


def test_prefix():
    assert house.has_role_prefix("npu_driver_reboot", "npu_driver")
    assert house.has_role_prefix("__npu_driver_step", "npu_driver")
    assert not house.has_role_prefix("npu_drivers", "npu_driver")
    assert not house.has_role_prefix("reboot", "npu_driver")
