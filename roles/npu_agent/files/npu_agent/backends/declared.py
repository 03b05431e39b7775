# SPDX-License-Identifier: GPL-3.0-or-later
"""The rules of what an operator declares as lists: `devices`, `endpoints`, `rockchip_extra`. Pure.

Each returns its list with all keys filled in; ValueError has every rule that is broken, and never a variable's value: it may be a token.
"""

import ipaddress
import itertools
import json
import re
from collections import Counter

from ..config import resource_name
from .patterns import TooMuch, Work, overlap

LIMIT = 256  # entries, and paths of all of them
TOLD = 8  # overlaps at once
STARS = 4  # in one path: more tell nothing more, and take long to compare
PATH_LIMIT = 200
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9._]{0,61}[A-Za-z0-9])?\Z")
ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[-A-Za-z0-9.]*[A-Za-z0-9])?):([1-9][0-9]{0,4})\Z")
# A name whose last part is a number is read as an address of IPv4, in forms such as 127.1 and 0x7f000001 too.
NUMERIC = re.compile(r"(?:.*\.)?(?:[0-9]+|0[xX][0-9A-Fa-f]*)\Z")
NUMBERED = re.compile(r"(.*)-(0|[1-9][0-9]{0,5})\Z")
NUMBER = "{n}"  # in `with`: the number at the end of the device's own path
BUSY = {"dri": "the GPU and the display", "accel": "other accelerators"}  # folders of /dev that no container gets by `rockchip_extra`

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
    return good(entries, faults or count_faults(entries, ("paths", "with")) or kind_faults(entries) or overlaps(entries))


def endpoints(value):
    entries, faults = entries_of(value, ENDPOINT)
    for where, entry in entries:
        faults += [f"{where}: resource: {text}" for text in resource_faults(entry["resource"])]
        if not isinstance(entry["name"], str) or not NAME.match(entry["name"]):
            faults.append(f"{where}: name must begin and end with a letter or digit, and have only those and '-._', at most 63")
        if canonical(entry["address"]) is None:
            faults.append(f"{where}: address must be HOST:PORT, with a port from 1 to 65535; HOST is a name or an address such as 10.0.0.7 "
                          "or [fd00::7]; no number in it begins with 0")
        faults += path_faults(f"{where}: nodes", entry["nodes"], plain=True)
        faults += variable_faults(where, entry["envs"])
    if not faults:
        ids = [endpoint_id(entry["name"]) for _where, entry in entries]
        faults = count_faults(entries, ("nodes",)) + kind_faults(entries)
        for every, words in (
            ([canonical(entry["address"]) for _where, entry in entries], "`shares` offers one several times"),
            (ids, "each needs a name of its own"),
            ([path for _where, entry in entries for path in set(entry["nodes"])], "a node is one endpoint's: it would be two pods'"),
        ):
            faults += [f"{what} is there {count} times: {words}" for what, count in Counter(every).items() if count > 1]
        faults += [f"{name} can be a share of {match.group(1)}: give one of them another name"
                   for name, match in ((name, NUMBERED.match(name)) for name in sorted(set(ids))) if match and match.group(1) in ids]
    return good(entries, faults)


def extra(value):
    value = parsed(value)
    faults = path_faults("its paths", value)
    for path in [] if faults else value:
        steps = path.split("/")[2:]
        faults += [f"{path!r} can be a node of {whose}, which no other device's container gets" for folder, whose in BUSY.items()
                   if overlap(steps[0], folder) and len(steps) > 1]
    if faults:
        raise ValueError("; ".join(faults))
    return list(value)


# --- parts

def parsed(value):
    if isinstance(value, str):
        try:
            value = json.loads(value, object_pairs_hook=once)
        except Twice:
            raise ValueError("a key of an entry is there twice") from None
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        except ValueError as error:
            raise ValueError(f"it is no JSON: {getattr(error, 'msg', 'a number in it is too long')}") from None
    if not isinstance(value, list):
        raise ValueError("it must be a list")
    return value


class Twice(Exception):
    pass


def once(pairs):
    """The mapping of these pairs: of two values of one key nobody knows which one was meant."""
    if len(dict(pairs)) < len(pairs):
        raise Twice
    return dict(pairs)


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
        faults += [f"{where}: there is no key {shown(key)}; there are: {', '.join(keys)}" for key in entry if key not in keys]
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


def count_faults(entries, keys):
    count = sum(len(entry[key]) for _where, entry in entries for key in keys)
    return [f"it has {count} paths in all, and may have {LIMIT}"] if count > LIMIT else []


def shown(value):
    """For a text: what is no text may be of any size."""
    return repr(value[:60]) if isinstance(value, str) else f"(a {type(value).__name__})"


def path_faults(where, paths, *, least=0, number=False, plain=False):
    if not isinstance(paths, list) or not least <= len(paths) <= LIMIT:
        return [f"{where} must be a list of {'at least one path' if least else 'paths'} below /dev"]
    found = []
    for path in paths:
        text = path.replace(NUMBER, "0") if isinstance(path, str) and number else path
        if not isinstance(text, str) or not text.startswith("/dev/") or not text.isprintable() or len(text) > PATH_LIMIT:
            found.append(f"{where}: {shown(path)} is no path below /dev")
        elif not text.isascii():
            found.append(f"{where}: {path!r} has letters beyond ASCII")
        elif text.count("*") > STARS:
            found.append(f"{where}: {path!r} has more than {STARS} '*'")
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
    found = [f"{where}: envs: {shown(name)} is no name of a variable" for name in envs
             if not isinstance(name, str) or not VARIABLE.match(name)]
    found += [f"{where}: envs: the value of {str(name)[:60]} must be text or a number, in one line" for name, value in envs.items()
              if isinstance(name, str) and not is_plain(value)]
    return found


def is_plain(value):
    return isinstance(value, (str, int, float)) and not isinstance(value, bool) and str(value).isprintable()


def prefix_of(resource):
    """What ids of a resource begin with."""
    return f"{resource.partition('/')[2]}-"


def canonical(address):
    """HOST:PORT as it is compared: one form for all spellings. None where it is none."""
    match = ADDRESS.match(address) if isinstance(address, str) else None
    if match is None or int(match.group(2)) > 65535:
        return None
    host = match.group(1).lower()
    try:
        if host.startswith("["):
            found: object = ipaddress.IPv6Address(host[1:-1])
            found = getattr(found, "ipv4_mapped", None) or found
        elif NUMERIC.match(host):
            found = ipaddress.IPv4Address(host)
            if str(found) != host:  # before Python 3.9.5 it takes 010
                return None
        else:
            found = host
    except ValueError:
        return None
    return f"[{found}]:{match.group(2)}" if isinstance(found, ipaddress.IPv6Address) else f"{found}:{match.group(2)}"


def endpoint_id(name):
    """The id of an endpoint: its name where that ends with a number, NAME-0 else."""
    return name if NUMBERED.match(name) else f"{name}-0"


def overlaps(entries):
    """Which patterns of two entries, or which `with` of one and paths of any, could match one node: two pods would get it."""
    try:
        return list(itertools.islice(pairs_that_overlap(entries, Work()), TOLD))
    except TooMuch as error:
        return [str(error)]


def pairs_that_overlap(entries, work):
    own = [(where, path) for where, entry in entries for path in entry["paths"]]
    for number, (where, path) in enumerate(own):
        for place, other in own[:number]:
            if place != where and overlap(path, other, work):
                yield f"{where}: {path!r} and {other!r} of {place} can match the same device"
    for where, entry in entries:
        for path in entry["with"]:
            for place, other in own:
                if overlap(path.replace(NUMBER, "[0-9]*"), other, work):
                    yield f"{where}: with {path!r} can be a device of its own, by {other!r} of {place}"
