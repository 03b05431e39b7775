# SPDX-License-Identifier: GPL-3.0-or-later
"""Levels of the driver's fault codes: what a code means for the work on a chip.

fault_codes.json holds the vendor's own levels. An operator's file (setting `fault_file`) has the form of the vendor's faultCode.json, as
JSON or YAML: a code that it names leaves the level it has here. It may have `FaultFrequency` and `FaultDuration` as in the vendor's
faultCustomization.json, too; the rules of each then stand in place of all those of its kind that are built in.

A code is a hexadecimal number for the vendor as well (020001002 of its file is the driver's 20001002), so codes are compared as numbers
and written with at least 8 digits, in capitals.
"""

import json
import pkgutil
import re
from collections import namedtuple

from .config import ConfigError

#: From harmless to worst; the order in which the vendor's plugin lets one win over another.
ORDER = (
    "NotHandleFault", "SubHealthFault", "RestartRequest", "RestartBusiness", "FreeRestartNPU", "RestartNPU", "PreSeparateNPU",
    "SeparateNPU", "ManuallySeparateNPU",
)
# PreSeparateNPU: the vendor keeps such a chip healthy while a pod uses it. Kubelet leaves a running pod alone when its chip turns
# unhealthy, so unhealthy at once comes to the same, and nobody has to ask who uses the chip.
HEALTHY = ("NotHandleFault", "SubHealthFault")
MEANING = {
    "NotHandleFault": "needs nothing",
    "SubHealthFault": "works, but not as it should",
    "RestartRequest": "the job has to repeat its request",
    "RestartBusiness": "the job has to be started again",
    "FreeRestartNPU": "the chip has to be reset once no job uses it",
    "RestartNPU": "the chip has to be reset and the job started again",
    "PreSeparateNPU": "no new job may start on the chip",
    "SeparateNPU": "the chip has to be taken out",
    "ManuallySeparateNPU": "the chip stays out until somebody has looked at it",
}
# The vendor reads lists of network codes apart from the others; a code has one level all the same.
LISTS = {f"{word}Codes": word for word in ORDER[:-1]}
LISTS.update((f"{word}NetworkCodes", word) for word in ("NotHandleFault", "SubHealthFault", "PreSeparateNPU", "SeparateNPU"))
FREQUENCY, DURATION = "FaultFrequency", "FaultDuration"
# The vendor's limits, of the numbers that a rule of each kind has.
RULE_NUMBERS = {
    FREQUENCY: {"TimeWindow": (60, 864000), "Times": (1, 100), "ReleaseTimeWindow": (60, 2 ** 32)},
    DURATION: {"FaultTimeout": (0, 600), "RecoverTimeout": (0, 86400)},
}
UNUSED = {"GraceTolerance": "npu-agent resets no chip"}
CODE = re.compile(r"(?:0[xX])?([0-9A-Fa-f]{8,9})")
CODE_FORM = "8 or 9 hexadecimal digits such as 80E01801"

# So many occurrences of a code within `window` seconds give it this level, until it has been away for `release` seconds
# (None: until somebody has removed the file of health_file.py and started the agent anew).
Rule = namedtuple("Rule", "level window times release")
# A code that has stood for `timeout` seconds has this level from then on, until it has been away for `recover` seconds.
# For its Rule it has come then, and not before (the vendor's source).
Duration = namedtuple("Duration", "level timeout recover")


class FaultFileError(ConfigError):
    """All faults of a file with fault codes, one text each."""


class Levels:
    """The level of each known code, the rules for those that come again and again, those for what lasts, and `notes`: what of the file is
    not used."""

    def __init__(self, levels, rules=None, notes=(), lasting=None):
        self.levels, self.rules, self.notes, self.lasting = dict(levels), dict(rules or {}), list(notes), dict(lasting or {})

    def of(self, code):
        """The level word of a code (8 digits or more, capitals), None when nobody knows it."""
        return self.levels.get(code)

    def rule(self, code):
        return self.rules.get(code)


def worse(one, other):
    """The worse of two level words; either may be None."""
    return max(one, other, key=rank)


def rank(level):
    return ORDER.index(level) if level in ORDER else -1


def load(path=""):
    """The built-in levels, with what an operator's file says instead. Raises FaultFileError."""
    data = json.loads((pkgutil.get_data(__package__, "fault_codes.json") or b"").decode("utf-8"))
    levels = {code: level for level, codes in data["levels"].items() for code in codes}
    rules = {
        code: Rule(rule["level"], rule["window"], rule["times"], rule["release"]) for rule in data["frequency"] for code in rule["codes"]
    }
    lasting = {code: Duration(rule["level"], rule["timeout"], rule["recover"]) for rule in data["duration"] for code in rule["codes"]}
    if not path:
        return Levels(levels, rules, lasting=lasting)
    given = Reader(path)
    levels.update(given.levels)
    return Levels(levels, given.rules.get(FREQUENCY, rules), given.notes, given.rules.get(DURATION, lasting))


class Reader:
    """An operator's file: `levels` {code: level}, `rules` {FREQUENCY: {code: Rule}, DURATION: {code: Duration}}, `notes`."""

    def __init__(self, path):
        self.path, self.faults = path, []
        self.levels, self.rules, self.notes = {}, {}, []
        top = self.compose()
        if top is not None:
            self.read(top)
        if self.faults:
            raise FaultFileError(self.faults)

    def compose(self):
        import yaml  # noqa: PLC0415  most nodes have no such file, and JSON is YAML

        self.yaml = yaml
        try:
            with open(self.path, encoding="utf-8") as stream:
                text = stream.read().expandtabs()  # JSON may have tabs where YAML may not
            return yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        except FileNotFoundError:
            self.faults.append(f"{self.path}: there is no such file")
        except (OSError, UnicodeDecodeError) as error:
            self.faults.append(f"{self.path}: cannot be read: {error}")
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            line = "" if mark is None else f" line {mark.line + 1}"
            self.faults.append(f"{self.path}{line}: is neither JSON nor YAML: {getattr(error, 'problem', None) or error}")
        return None

    def fault(self, node, text):
        self.faults.append(f"{self.path} line {node.start_mark.line + 1}: {text}")

    def read(self, top):
        for key, node in self.entries(top, "the file", (*LISTS, *RULE_NUMBERS, *UNUSED)):
            if key in LISTS:
                for code in self.codes(node, key):
                    self.levels[code] = worse(self.levels.get(code), LISTS[key])
            elif key in RULE_NUMBERS:
                self.rules[key] = self.read_rules(node, key)
            else:
                self.notes.append(f"{self.path}: {key} is not used: {UNUSED[key]}")

    def read_rules(self, node, kind):
        rules = {}
        for item in self.items(node, kind):
            found = dict(self.entries(item, f"a rule of {kind}", ("EventId", "FaultHandling", *RULE_NUMBERS[kind])))
            numbers = [self.whole(found.get(key), key, limits, item) for key, limits in RULE_NUMBERS[kind].items()]
            rule = (Rule if kind == FREQUENCY else Duration)(self.level(found.get("FaultHandling"), kind, numbers[-1], item), *numbers)
            codes = self.codes(found["EventId"], "EventId") if "EventId" in found else []
            if not codes:
                self.fault(item, "EventId names no code; allowed: a list of codes")
            for code in codes:
                if code in rules:
                    self.fault(item, f"EventId: {code} has a rule already")
                rules[code] = rule
        return rules

    def level(self, node, kind, release, item):
        word, allowed = getattr(node, "value", None), ORDER if kind == FREQUENCY else ORDER[:-1]
        if word not in allowed:
            self.fault(node or item, f"FaultHandling is {shown(word)}; allowed: {', '.join(allowed)}")
        elif kind == FREQUENCY and word != ORDER[-1] and release is None:
            # The vendor refuses this as well: only what is separated by hand is released by hand.
            self.fault(item, f"FaultHandling is {word}, so ReleaseTimeWindow must be given")
        return word

    def whole(self, node, key, limits, item):
        (low, high), value = limits, getattr(node, "value", None)
        if key == "ReleaseTimeWindow" and (node is None or value == "0"):
            return None
        if not isinstance(value, str) or not re.fullmatch("[0-9]{1,12}", value) or not low <= int(value) <= high:
            self.fault(node or item, f"{key} is {shown(value)}; allowed: a whole number from {low} to {high}")
            return None
        return int(value)

    def codes(self, node, key):
        found = []
        for item in self.items(node, key):
            match = CODE.fullmatch(item.value) if isinstance(item, self.yaml.ScalarNode) else None
            if match is None:
                self.fault(item, f"{key}: {shown(item.value)} is no fault code; allowed: {CODE_FORM}")
            else:
                found.append(f"{int(match.group(1), 16):08X}")
        return found

    def items(self, node, key):
        if isinstance(node, self.yaml.SequenceNode):
            return node.value
        self.fault(node, f"{key} is {shown(node.value)}; allowed: a list")
        return []

    def entries(self, node, what, known):
        """(key, value node) of the known keys of a mapping."""
        if not isinstance(node, self.yaml.MappingNode):
            self.fault(node, f"{what} must have the keys {', '.join(known)}")
            return
        seen = set()
        for key_node, value in node.value:
            key = key_node.value if isinstance(key_node, self.yaml.ScalarNode) else None
            if key not in known:
                self.fault(key_node, f"{what} has no key {shown(key)}; allowed: {', '.join(known)}")
            elif key in seen:
                self.fault(key_node, f"{key} is there a second time")
            else:
                seen.add(key)
                yield key, value


def shown(value):
    return repr(value[:60]) if isinstance(value, str) else "nothing" if value is None else "a list or a mapping"
