# SPDX-License-Identifier: GPL-3.0-or-later
"""The health rule: which chip may take work. The only place that decides it for pods; its levels are _hardware/_health.py's.

DCMI tells one number per chip (dcmi_get_device_health): 0 no fault, 1 minor, 2 major, 3 critical, 0xFFFFFFFF no such device; npu-smi
prints the same as OK, Warning, Alarm, Critical, UNKNOWN. The vendor's own plugin keeps chips with faults of its levels "not handled"
and "sub-health" in service, and those are what DCMI calls minor; so the default `unhealthy_from: major` agrees with it.

Kubelet knows two states only: the text Healthy, and any other. A chip is
  out of service   - its driver or its device node is missing (a container with it could never start), nor could one where chips are
                     given by CDI and the specification cannot be kept, it dropped off the bus
                     (health call answers -8012 or 0xFFFFFFFF), or its health is `unhealthy_from` or worse, or a number nobody knows;
  in its last state - while DCMI does not answer for it, for `keep_last_state` seconds; then it is out of service, with the cause.
"""

from ._hardware._health import LEVELS

WORDS = {0: "OK", 1: "minor", 2: "major", 3: "critical"}
HEALTHY = "Healthy"
UNHEALTHY = "Unhealthy"


def judge(chip, unhealthy_from):
    """(True, note), (False, reason), or (None, cause) when DCMI said nothing about this chip.

    `chip` has: driver_bound, device_node_present (None: not looked at), health_code, error_codes, dropped, error (text), and
    not_described (text) where chips are given by CDI and the specification is not what it should be.
    """
    if chip.get("driver_bound") is False:
        return False, "no driver is bound to its PCI function"
    if chip.get("device_node_present") is False:
        return False, f"its device node {chip.get('device_node') or ''} is missing".replace("  ", " ")
    if chip.get("not_described"):
        return False, chip["not_described"]
    if chip.get("dropped"):
        return False, "the driver says that the chip is gone or not ready"
    code = chip.get("health_code")
    if code is None:
        return None, chip.get("error") or "DCMI told no health"
    codes = ", ".join(chip.get("error_codes") or [])
    text = f"DCMI health {WORDS.get(code, hex(code))}" + (f", error codes {codes}" if codes else "")
    if code not in WORDS:
        return False, text
    return code < LEVELS[unhealthy_from], "" if code == 0 else text


class Memory:
    """The last known state of each chip, and for how long it may still be used. Ages are monotonic: clocks get set."""

    def __init__(self, keep_seconds):
        self.keep_seconds = keep_seconds
        self.known = {}

    def settle(self, key, verdict, now):
        """(healthy, reason, kept): what to tell kubelet, given the newest verdict of judge()."""
        healthy, reason = verdict
        if healthy is not None:
            self.known[key] = (healthy, reason, now)
            return healthy, reason, False
        if key not in self.known:
            return False, reason, False
        healthy, last_reason, seen = self.known[key]
        if now - seen <= self.keep_seconds:
            return healthy, last_reason or f"last known state; {reason}", True
        return False, f"no answer for more than {self.keep_seconds:g} s: {reason}", False
