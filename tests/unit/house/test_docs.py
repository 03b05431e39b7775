# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the modules says what the code does. ansible-test does not compare suboptions, so it is done here."""

import ast
import importlib

import house
import pytest
import yaml

MODULES = house.module_names()


@pytest.mark.parametrize("module", MODULES)
def test_documentation_equals_the_argument_spec(module):
    found = house.specs(module)
    assert found, f"plugins/modules/{module}.py has no argument_spec(), nor has an action plugin of this name"
    documented = house.documentation(module).get("options") or {}
    for kind, spec in found.items():
        assert house.differences(documented, spec) == [], f"plugins/{kind}/{module}.py"


@pytest.mark.parametrize("module", MODULES)
def test_module_has_everything_a_reader_needs(module):
    code = importlib.import_module(f"{house.COLLECTION}.modules.{module}")
    doc = house.documentation(module)
    assert doc["module"] == module
    assert doc["version_added"] == "0.1.0"
    assert {"check_mode", "diff_mode", "idempotent", "platform"} <= set(doc["attributes"])
    for name, attribute in doc["attributes"].items():
        assert attribute.get("support"), name
    examples = yaml.safe_load(code.EXAMPLES)
    used = [key for task in house.tasks(examples) for key in task if "." in key and key.startswith("npu.fleet.")]
    assert f"npu.fleet.{module}" in used


@pytest.mark.parametrize("module", MODULES)
def test_return_values_are_documented(module):
    returns = yaml.safe_load(importlib.import_module(f"{house.COLLECTION}.modules.{module}").RETURN)
    assert returns
    assert house.undocumented_returns(returns) == []


@pytest.mark.parametrize("module", MODULES)
def test_check_mode_is_supported_as_documented(module):
    source = (house.ROOT / f"plugins/modules/{module}.py").read_text(encoding="utf-8")
    action = house.ROOT / f"plugins/action/{module}.py"
    if "Module(" in source:  # AnsibleModule, or one of our own that is made from it
        assert "supports_check_mode=True" in source
    else:
        assert action.exists()
    assert house.documentation(module)["attributes"]["check_mode"]["support"] == "full"


def test_action_groups_name_modules_and_every_module_is_in_one():
    groups = house.load_yaml("meta/runtime.yml")["action_groups"]
    named = [name for group in groups.values() for name in group if isinstance(name, str)]
    assert sorted(set(named) - set(MODULES)) == []
    assert len(named) == len(set(named))


@pytest.mark.parametrize("kind", ["action", "filter", "lookup", "callback", "plugin_utils", "module_utils"])
def test_private_code_is_marked_private(kind):
    """Plugins are public by their name; everything that only they use begins with an underscore."""
    folder = house.ROOT / "plugins" / kind
    names = [path.name for path in folder.glob("*") if path.name != "__pycache__"] if folder.exists() else []
    if kind.endswith("_utils"):
        # catalog/ is data that users may read and copy.
        assert [name for name in names if not name.startswith("_") and name != "catalog"] == []
    if kind == "action":
        assert [name for name in names if name.endswith(".py") and name[:-3] not in MODULES and not name.startswith("_")] == []


DOCUMENTED = {"a": {"description": "x", "type": "list", "elements": "dict", "suboptions": {"b": {"description": "x", "required": True}}}}


@pytest.mark.parametrize(("spec", "difference"), [
    ({}, "a: documented, not in the spec"),
    ({"a": {"type": "list", "elements": "dict", "options": {"b": {"required": True}}}, "c": {}}, "c: in the spec, not documented"),
    ({"a": {"type": "list", "elements": "dict"}}, "a.b: documented, not in the spec"),
    ({"a": {"type": "list", "elements": "dict", "options": {"b": {}}}}, "a.b: required is documented as True, the spec says False"),
    ({"a": {"type": "list", "elements": "dict", "options": {"b": {"required": True, "default": 0}}}}, "a.b: default is documented as None"),
    ({"a": {"type": "list", "elements": "dict", "options": {"b": {"required": True, "choices": ["x"]}}}}, "a.b: choices"),
    ({"a": {"type": "list", "elements": "str", "options": {"b": {"required": True}}}}, "a: elements"),
])
def test_the_comparison_sees_each_kind_of_difference(spec, difference):
    assert any(line.startswith(difference) for line in house.differences(DOCUMENTED, spec))


def test_the_comparison_is_silent_where_both_agree():
    assert house.differences(DOCUMENTED, {"a": {"type": "list", "elements": "dict", "options": {"b": {"required": True}}}}) == []


def test_a_sample_counts_for_what_it_contains():
    inner = {"b": {"description": "x", "type": "int"}}
    returns = {"a": {"description": "x", "returned": "success", "type": "dict", "sample": {"b": 1}, "contains": inner}}
    assert house.undocumented_returns(returns) == []
    del returns["a"]["returned"]
    assert house.undocumented_returns(returns) == ["a: no returned"]


def test_the_look_at_return_values_goes_down():
    inner = {"b": {"description": "x", "type": "int"}}
    returns = {"a": {"description": "x", "returned": "success", "type": "dict", "contains": inner}}
    assert house.undocumented_returns(returns) == ["a.b: no sample"]


def test_every_filter_is_documented():
    """ansible-doc finds a filter of a file with several only by a YAML file of the filter's own name."""
    files = [path.stem for path in (house.ROOT / "plugins/filter").glob("*.py")]
    filters = [name for file in files for name in importlib.import_module(f"{house.COLLECTION}.filter.{file}").FilterModule().filters()]
    found = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in (house.ROOT / "plugins/filter").glob("*.yml")}
    assert sorted(found) == sorted(filters)
    for name, told in found.items():
        assert told["DOCUMENTATION"]["name"] == name
        assert told["RETURN"]["_value"]["description"]
        used = f"npu.fleet.{name}"
        assert used in told["EXAMPLES"]


def test_families_are_the_same_everywhere():
    """An argument spec and the agent's settings must be literal; a family that one of them lacks could not be named there."""
    families = importlib.import_module(f"{house.COLLECTION}.module_utils._hardware._families").FAMILIES
    names = importlib.import_module(f"{house.COLLECTION}.module_utils._packages._names")
    package = importlib.import_module(f"{house.COLLECTION}.modules.npu_package").argument_spec()
    assert sorted(package["family"]["choices"]) == sorted(families)
    assert set(names.CHIP_FAMILY.values()) == set(families)
    config = ast.parse((house.ROOT / "roles/npu_agent/files/npu_agent/config.py").read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(config) if isinstance(node, ast.Call) and ast.unparse(node.func) == "one_of"]
    choices = [[word.value for word in call.args] for call in calls]
    assert [sorted(words) for words in choices if "910" in words] == [sorted(["auto", *families])]
