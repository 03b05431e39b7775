# SPDX-License-Identifier: GPL-3.0-or-later
"""The rules of what an operator declares as lists: `devices`, `endpoints`, `rockchip_extra`. Pure.

Each returns its list with all keys filled in; ValueError has every rule that is broken, and never a variable's value: it may be a token.
"""

import json
import re
from collections import Counter

from ..config import resource_name

LIMIT = 256  # entries, and paths of an entry
PATH_LIMIT = 200
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9._]{0,61}[A-Za-z0-9])?\Z")
ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[-A-Za-z0-9.]*[A-Za-z0-9])?):([0-9]{1,5})\Z")
NUMBERED = re.compile(r"(.*)-(0|[1-9][0-9]{0,5})\Z")
NUMBER = "{n}"  # in `with`: the number at the end of the device's own path
PLACES = ("{address}", "{host}", "{port}", "{name}")  # in variables of endpoints

DEVICE = {"resource": None, "paths": None, "with": [], "envs": {}, "env_ids": "", "open": False}
ENDPOINT = {"resource": None, "name": None, "address": None, "envs": {}, "nodes": []}


def devices(value):
    entries, faults = entries_of(value, DEVICE)
    for where, entry in entries:
        faults += [f"{where}: resource: {text}" for text in resource_faults(entry["resource"])]
        faults += path_faults(f"{where}: paths", entry["paths"], least=1)
        faults += path_faults(f"{where}: with", entry["with"], number=True)
        faults += variable_faults(where, entry["envs"])
        if not isinstance(entry["env_ids"], str) or (entry["env_ids"] and not VARIABLE.match(entry["env_ids"])):
            faults.append(f"{where}: env_ids must be the name of a variable")
        elif entry["env_ids"] in (entry["envs"] if isinstance(entry["envs"], dict) else ()):
            faults.append(f"{where}: env_ids is also in envs")
        if not isinstance(entry["open"], bool):
            faults.append(f"{where}: open must be true or false")
    return good(entries, faults or kind_faults(entries) or overlaps(entries))


def endpoints(value):
    entries, faults = entries_of(value, ENDPOINT)
    for where, entry in entries:
        faults += [f"{where}: resource: {text}" for text in resource_faults(entry["resource"])]
        if not isinstance(entry["name"], str) or not NAME.match(entry["name"]):
            faults.append(f"{where}: name must begin and end with a letter or digit, and have only those and '-._', at most 63")
        match = ADDRESS.match(entry["address"]) if isinstance(entry["address"], str) else None
        if match is None or not 1 <= int(match.group(2)) <= 65535:
            faults.append(f"{where}: address must be HOST:PORT, with a port from 1 to 65535")
        faults += path_faults(f"{where}: nodes", entry["nodes"], plain=True)
        faults += variable_faults(where, entry["envs"])
    if not faults:
        faults = kind_faults(entries)
        for key, words in (("address", "`shares` offers one several times"), ("id", "each needs a name of its own")):
            counts = Counter(endpoint_id(entry["name"]) if key == "id" else entry[key].lower() for _where, entry in entries)
            faults += [f"{what} is there {count} times: {words}" for what, count in counts.items() if count > 1]
    return good(entries, faults)


def extra(value):
    value = parsed(value)
    faults = path_faults("its paths", value)
    if faults:
        raise ValueError("; ".join(faults))
    return list(value)


# --- parts

def parsed(value):
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f"it is no JSON: {getattr(error, 'msg', error)}") from None
    if not isinstance(value, list):
        raise ValueError("it must be a list")
    return value


def entries_of(value, keys):
    """([(where, entry)], faults): entries that are mappings, with all keys."""
    entries, faults = [], []
    value = parsed(value)
    if len(value) > LIMIT:
        return [], [f"it has more than {LIMIT} entries"]
    for number, entry in enumerate(value, 1):
        where = f"entry {number}"
        if not isinstance(entry, dict):
            faults.append(f"{where} must have keys: {', '.join(keys)}")
            continue
        faults += [f"{where}: there is no key {key!r}; there are: {', '.join(keys)}" for key in entry if key not in keys]
        missing = [key for key, default in keys.items() if default is None and key not in entry]
        faults += [f"{where}: {key} is missing" for key in missing]
        if not missing:
            entries.append((where, {key: entry.get(key, default) for key, default in keys.items()}))
    return entries, faults


def good(entries, faults):
    if faults:
        raise ValueError("; ".join(faults))
    return [{**entry, "envs": {name: str(value) for name, value in entry["envs"].items()}} for _where, entry in entries]


def resource_faults(value):
    if not isinstance(value, str) or not value:
        return ["it must be a name such as vendor.example/npu"]
    try:
        resource_name(value)
    except ValueError as error:
        return [str(error)]
    return []


def kind_faults(entries):
    """Resources whose ids would be mixed up: ids begin with what stands behind the '/'."""
    names: dict = {}
    for _where, entry in entries:
        names.setdefault(entry["resource"].partition("/")[2], set()).add(entry["resource"])
    return [f"{' and '.join(sorted(found))} have the same name behind the '/': one agent tells them apart by it"
            for found in names.values() if len(found) > 1]


def path_faults(where, paths, *, least=0, number=False, plain=False):
    if not isinstance(paths, list) or not least <= len(paths) <= LIMIT:
        return [f"{where} must be a list of {'at least one path' if least else 'paths'} below /dev"]
    found = []
    for path in paths:
        text = path.replace(NUMBER, "0") if isinstance(path, str) and number else path
        if not isinstance(text, str) or not text.startswith("/dev/") or not text.isprintable() or len(text) > PATH_LIMIT:
            found.append(f"{where}: {str(path)[:60]!r} is no path below /dev")
        elif {"", ".", ".."} & set(text[1:].split("/")):
            found.append(f"{where}: {path!r} has an empty, '.' or '..' step")
        elif "**" in text or (set("{}") & set(text)):
            found.append(f"{where}: {path!r} has '**', '{{' or '}}'" + (f", of which only {NUMBER} is known" if number else ""))
        elif plain and set("*?[") & set(text):
            found.append(f"{where}: {path!r} must be a path, no pattern")
    return found


def variable_faults(where, envs):
    if not isinstance(envs, dict):
        return [f"{where}: envs must be 'NAME: value' lines"]
    found = [f"{where}: envs: {str(name)[:60]!r} is no name of a variable" for name in envs
             if not isinstance(name, str) or not VARIABLE.match(name)]
    found += [f"{where}: envs: the value of {str(name)[:60]} must be text or a number, in one line" for name, value in envs.items()
              if isinstance(value, bool) or not isinstance(value, (str, int, float)) or not str(value).isprintable()]
    return found


def prefix_of(resource):
    """What ids of a resource begin with."""
    return f"{resource.partition('/')[2]}-"


def endpoint_id(name):
    """The id of an endpoint: its name where that ends with a number, NAME-0 else."""
    return name if NUMBERED.match(name) else f"{name}-0"


# --- patterns that could match the same path

STAR = "*"
LETTERS = frozenset(map(chr, range(0x20, 0x7f)))
SLASH = frozenset("/")
ANY = LETTERS - SLASH


def overlaps(entries):
    """Which patterns of two entries, or which `with` of one and paths of any, could match one node: two pods would get it."""
    own = [(where, path) for where, entry in entries for path in entry["paths"]]
    found = []
    for number, (where, path) in enumerate(own):
        found += [f"{where}: {path!r} and {other!r} of {place} can match the same device" for place, other in own[:number]
                  if place != where and overlap(path, other)]
    for where, entry in entries:
        for path in entry["with"]:
            pattern = path.replace(NUMBER, "[0-9]*")
            found += [f"{where}: with {path!r} can be a device of its own, by {other!r} of {place}" for place, other in own
                      if overlap(pattern, other)]
    return found


def overlap(one, other):
    """Whether some path matches both patterns (as glob has them: '*' and '?' match no '/')."""
    one, other = tokens(one), tokens(other)
    seen, open_ends = set(), [(0, 0)]
    while open_ends:
        here = open_ends.pop()
        if here in seen:
            continue
        seen.add(here)
        first, second = here
        if first == len(one) and second == len(other):
            return True
        mine, yours = (one[first] if first < len(one) else None), (other[second] if second < len(other) else None)
        if mine is STAR:
            open_ends.append((first + 1, second))
        if yours is STAR:
            open_ends.append((first, second + 1))
        if mine is None or yours is None:
            continue
        if mine is STAR and yours is not STAR and yours - SLASH:
            open_ends.append((first, second + 1))
        elif yours is STAR and mine is not STAR and mine - SLASH:
            open_ends.append((first + 1, second))
        elif mine is not STAR and yours is not STAR and mine & yours:
            open_ends.append((first + 1, second + 1))
    return False


def tokens(pattern):
    """STAR, or the set of letters that stand at each place."""
    found: list = []
    place = 0
    while place < len(pattern):
        letter = pattern[place]
        end = pattern.find("]", place + 2) if letter == "[" else -1
        if letter == "*":
            found.append(STAR)
        elif letter == "?":
            found.append(ANY)
        elif end > 0:
            found.append(letters(pattern[place + 1:end]))
            place = end
        else:
            found.append(frozenset(letter))
        place += 1
    return found


def letters(inside):
    """What [inside] matches."""
    unlike = inside.startswith("!")
    inside = inside[1:] if unlike else inside
    found: set = set()
    while inside:
        if len(inside) > 2 and inside[1] == "-":
            found.update(map(chr, range(ord(inside[0]), ord(inside[2]) + 1)))
            inside = inside[3:]
        else:
            found.add(inside[0])
            inside = inside[1:]
    return frozenset(ANY - found if unlike else found & ANY)
