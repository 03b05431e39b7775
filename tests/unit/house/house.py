# SPDX-License-Identifier: GPL-3.0-or-later
"""What the house tests look at, and their rules as functions that a test can feed with a bad example."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[3]
COLLECTION = "ansible_collections.npu.fleet.plugins"


def tree():
    """Every file of the project, tracked or new, as paths relative to ROOT; what git ignores is not looked at."""
    command = ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, check=False, capture_output=True)
    if listed.returncode:  # a copy without .git
        skip = {".build", ".venv", ".cache", ".ansible", "__pycache__"}
        return sorted(str(path.relative_to(ROOT)) for path in ROOT.rglob("*")
                      if path.is_file() and not skip & set(path.relative_to(ROOT).parts))
    return sorted(name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file())


def python_files(*prefixes):
    return [name for name in tree() if name.endswith(".py") and name.startswith(prefixes)]


def module_names():
    return sorted(path.stem for path in (ROOT / "plugins/modules").glob("*.py") if path.stem != "__init__")


def role_names():
    return sorted({name.split("/")[1] for name in tree() if name.startswith("roles/")})


def load_yaml(path):
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


# ---- documentation against argument spec

def documentation(module):
    """Return DOCUMENTATION of a module with its fragments merged in, as ansible-doc does."""
    text = importlib.import_module(f"{COLLECTION}.modules.{module}").DOCUMENTATION
    doc = yaml.safe_load(text)
    names = doc.get("extends_documentation_fragment") or []
    for name in [names] if isinstance(names, str) else names:
        if not name.startswith("npu.fleet."):
            continue
        file, _, variable = name[len("npu.fleet."):].partition(".")
        fragment = importlib.import_module(f"{COLLECTION}.doc_fragments.{file}").ModuleDocFragment
        extra = yaml.safe_load(getattr(fragment, (variable or "documentation").upper()))
        for key in ("options", "attributes"):
            merged = {**(extra.get(key) or {}), **(doc.get(key) or {})}
            for inner, value in (extra.get(key) or {}).items():
                merged[inner] = {**value, **(merged[inner] or {})}
            doc[key] = merged
    return doc


def specs(module):
    """Return the argument specs that a module's documentation describes: of its module file, its action plugin, or both."""
    found = {}
    for kind in ("modules", "action"):
        if (ROOT / f"plugins/{kind}/{module}.py").exists():
            code = importlib.import_module(f"{COLLECTION}.{kind}.{module}")
            if hasattr(code, "argument_spec"):
                found[kind] = code.argument_spec()
    return found


def differences(documented, spec, path=""):
    """List where documented options and an argument spec do not say the same, suboptions included."""
    found = [f"{path}{name}: documented, not in the spec" for name in sorted(set(documented) - set(spec))]
    found += [f"{path}{name}: in the spec, not documented" for name in sorted(set(spec) - set(documented))]
    for name in sorted(set(spec) & set(documented)):
        told, is_ = documented[name] or {}, spec[name]
        if not told.get("description"):
            found.append(f"{path}{name}: no description")
        pairs = {
            "type": (told.get("type", "str"), is_.get("type", "str")),
            "elements": (told.get("elements"), is_.get("elements")),
            "required": (bool(told.get("required")), bool(is_.get("required"))),
            "default": (told.get("default"), is_.get("default")),
            "choices": (told.get("choices"), list(is_["choices"]) if is_.get("choices") else None),
            "aliases": (sorted(told.get("aliases") or []), sorted(is_.get("aliases") or [])),
        }
        found += [f"{path}{name}: {what} is documented as {a!r}, the spec says {b!r}" for what, (a, b) in pairs.items()
                  if a != b or type(a) is not type(b)]
        found += differences(told.get("suboptions") or {}, is_.get("options") or {}, f"{path}{name}.")
    return found


def undocumented_returns(returns, path="", sampled=False):
    """List what is missing in RETURN: description, type, at the top when it is returned, and a sample there or further up."""
    found = []
    for name, told in (returns or {}).items():
        wanted = ("description", "type") if path else ("description", "type", "returned")
        found += [f"{path}{name}: no {key}" for key in wanted if not told.get(key)]
        has_sample = sampled or "sample" in told
        if told.get("contains"):
            found += undocumented_returns(told["contains"], f"{path}{name}.", has_sample)
        elif not has_sample:
            found.append(f"{path}{name}: no sample")
    return found


# ---- imports

def imports(source):
    """Return [(line, module, level)] of every import statement; `from a import b` counts as a and as a.b."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name, 0) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [(node.lineno, f"{node.module}.{alias.name}" if node.module else alias.name, node.level) for alias in node.names]
    return found


def _under(module, names):
    return any(module == name or module.startswith(name + ".") for name in names)


def foreign_node_imports(source, ansible, newer, extra=()):
    """List imports that a node of Python 3.6 with only our own files cannot do."""
    own = (COLLECTION + ".module_utils",)
    return [f"line {line}: {module}" for line, module, level in imports(source)
            if level == 0 and not _under(module, own + tuple(ansible) + tuple(extra))
            and (_under(module, newer) or module.split(".")[0] not in sys.stdlib_module_names)]


def foreign_hardware_imports(source, depth):
    """List imports that would tie _hardware to Ansible or to this collection's layout: it is packed into the agent too.

    depth is the number of dots that still stay inside.
    """
    return [f"line {line}: {'.' * level}{module}" for line, module, level in imports(source)
            if level > depth or (level == 0 and module.split(".")[0] not in sys.stdlib_module_names)]


def product_references(source, modules, paths):
    """List imports and path literals by which test material reaches into the product."""
    found = [f"line {line}: {module}" for line, module, level in imports(source) if level == 0 and _under(module, modules)]
    nodes = list(ast.walk(ast.parse(source)))
    docstrings = [node.value for node in nodes if isinstance(node, ast.Expr)]
    for node in nodes:
        text = node.value if isinstance(node, ast.Constant) and node not in docstrings else None
        if isinstance(text, str) and any(path in text for path in paths):
            found.append(f"line {node.lineno}: {text!r}")
    return found


# ---- roles

def tasks(document):
    """Yield every task of a task file, play or list of plays, those in blocks too."""
    if isinstance(document, list):
        for item in document:
            yield from tasks(item)
    elif isinstance(document, dict):
        yield document
        for key in ("block", "rescue", "always", "tasks", "pre_tasks", "post_tasks", "handlers"):
            yield from tasks(document.get(key))


def spec_against_defaults(options, defaults):
    """List where the options of a role's argument spec and its defaults differ, in both directions."""
    found = [f"{name}: in defaults/main.yml, not in the spec" for name in sorted(set(defaults) - set(options))]
    for name, option in sorted(options.items()):
        if "default" in option and name not in defaults:
            found.append(f"{name}: the spec has a default, defaults/main.yml has none")
        elif "default" not in option and name in defaults:
            found.append(f"{name}: in defaults/main.yml, the spec has no default")
        elif "default" in option and (option["default"] != defaults[name] or type(option["default"]) is not type(defaults[name])):
            found.append(f"{name}: the spec says {option['default']!r}, defaults/main.yml {defaults[name]!r}")
        if option.get("required") and "default" in option:
            found.append(f"{name}: required and with a default")
        if not option.get("description"):
            found.append(f"{name}: no description")
        if "type" not in option:
            found.append(f"{name}: no type")
    return found


def names_set_by(task):
    """Return the variables that a task leaves behind: register and set_fact."""
    found = [task["register"]] if isinstance(task.get("register"), str) else []
    for key in ("set_fact", "ansible.builtin.set_fact"):
        if isinstance(task.get(key), dict):
            found += [name for name in task[key] if name != "cacheable"]
    return found


def has_role_prefix(name, role):
    """Say if a variable carries the role's name. Ansible's own (ansible_python_interpreter after a probe) are nobody's."""
    return name.startswith("ansible_") or name.lstrip("_").startswith(role + "_") or name.lstrip("_") == role
