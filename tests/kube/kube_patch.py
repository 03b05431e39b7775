# SPDX-License-Identifier: GPL-3.0-or-later
"""The three patch formats of the Kubernetes API for plain JSON objects: JSON merge patch, strategic merge patch, JSON patch."""

import copy

# Lists of a Node that a strategic merge patch merges by a key (patchMergeKey in k8s.io/api/core/v1 types.go). All other lists are replaced
# as a whole; spec.taints and status.images are among those (listType=atomic).
MERGE_KEYS = {
    ("metadata", "ownerReferences"): "uid",
    ("status", "addresses"): "type",
    ("status", "conditions"): "type",
}


class PatchError(ValueError):
    """The patch cannot be applied to this object."""


def merge(target, patch):
    """JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def strategic(target, patch, path=()):
    """Strategic merge patch with the directives `$patch: replace|delete`; orders of elements ($setElementOrder) are ignored."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    if patch.get("$patch") == "replace":
        return {key: copy.deepcopy(value) for key, value in patch.items() if key != "$patch"}
    if patch.get("$patch") == "delete":
        return {}
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if key.startswith("$"):
            continue
        here = (*path, key)
        if value is None:
            result.pop(key, None)
        elif isinstance(value, list) and here in MERGE_KEYS:
            result[key] = _merge_list(result.get(key) or [], value, MERGE_KEYS[here], here)
        else:
            result[key] = strategic(result.get(key), value, here)
    return result


def _merge_list(target, patch, merge_key, path):
    if any(item.get("$patch") == "replace" for item in patch):
        return [copy.deepcopy(item) for item in patch if item.get("$patch") != "replace"]
    result = [copy.deepcopy(item) for item in target]
    for item in patch:
        if merge_key not in item:
            raise PatchError(f"map: {item} does not contain declared merge key: {merge_key}")
        place = next((i for i, old in enumerate(result) if old.get(merge_key) == item[merge_key]), None)
        if item.get("$patch") == "delete":
            if place is not None:
                del result[place]
        elif place is None:
            result.append(strategic({}, item, path))
        else:
            result[place] = strategic(result[place], item, path)
    return result


def json_patch(target, operations):
    """JSON patch (RFC 6902)."""
    if not isinstance(operations, list):
        raise PatchError("a JSON patch is a list of operations")
    document = copy.deepcopy(target)
    for operation in operations:
        name = operation.get("op")
        if name in ("add", "replace", "test"):
            if "value" not in operation:
                raise PatchError(f"operation {name} needs a value")
            value = copy.deepcopy(operation["value"])
        elif name in ("move", "copy"):
            value = copy.deepcopy(_get(document, _split(operation.get("from"))))
            if name == "move":
                _remove(document, _split(operation["from"]))
        elif name != "remove":
            raise PatchError(f"unknown operation {name!r}")
        path = _split(operation.get("path"))
        if name == "test":
            if _get(document, path) != value:
                raise PatchError(f"testing value {operation['path']} failed")
        elif name == "remove":
            _remove(document, path)
        elif not path:
            document = value
        else:
            _put(document, path, value, replace=name == "replace")
    return document


def _split(pointer):
    if pointer == "":
        return []
    if not isinstance(pointer, str) or not pointer.startswith("/"):
        raise PatchError(f"not a JSON pointer: {pointer!r}")
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer[1:].split("/")]


def _step(container, part):
    try:
        return container[int(part) if isinstance(container, list) else part]
    except (KeyError, IndexError, ValueError, TypeError):
        raise PatchError(f"no such path: {part!r}") from None


def _get(document, path):
    for part in path:
        document = _step(document, part)
    return document


def _remove(document, path):
    if not path:
        raise PatchError("the whole document cannot be removed")
    parent = _get(document, path[:-1])
    _step(parent, path[-1])
    del parent[int(path[-1]) if isinstance(parent, list) else path[-1]]


def _put(document, path, value, replace):
    parent, last = _get(document, path[:-1]), path[-1]
    if replace:
        _step(parent, last)
    if isinstance(parent, dict):
        parent[last] = value
    elif not isinstance(parent, list):
        raise PatchError(f"no such path: {last!r}")
    elif replace:
        parent[int(last)] = value
    else:
        place = len(parent) if last == "-" else int(last) if last.isdigit() else -1
        if not 0 <= place <= len(parent):
            raise PatchError(f"no such place in the list: {last!r}")
        parent.insert(place, value)
