# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks npu-smi and DCMI, each with a deadline, and keeps why one of them did not answer."""

import os
import time

from . import _npu_smi
from ._dcmi_client import DcmiError, library_path

# The driver package puts it there (measured); distribution packages of the vendor's use /usr/bin.
NPU_SMI_PLACES = ("/usr/local/bin/npu-smi", "/usr/local/sbin/npu-smi", "/usr/bin/npu-smi", "/usr/sbin/npu-smi")


class QueryError(Exception):
    """Why a source gave no answer: source (npu-smi or dcmi), code, message."""

    def __init__(self, source, code, message, **details):
        Exception.__init__(self, message)
        self.source, self.code, self.message, self.details = source, code, message, details

    def as_dict(self):
        answer = dict(self.details)
        answer.update(source=self.source, code=self.code, message=self.message)
        return answer


def find_npu_smi(root="/"):
    """(path, None), or (None, QueryError) with the reason: every place is named, and so is a folder where the tool should be."""
    places = [os.path.join(root, place.lstrip("/")) for place in NPU_SMI_PLACES]
    for place in places:
        if os.path.isfile(place) and os.access(place, os.X_OK):
            return place, None
    # Docker makes a folder of this name when a container binds the missing file (vendor's deployer knows the case).
    folders = [place for place in places if os.path.isdir(place)]
    if folders:
        message = "%s is a folder, not npu-smi: a container bound the missing file; remove it with `rmdir %s`" % (folders[0], folders[0])
        return None, QueryError("npu-smi", "npu_smi_missing", message)
    return None, QueryError("npu-smi", "npu_smi_missing", "npu-smi is in none of %s: no NPU driver is installed" % ", ".join(places))


class NpuSmi:
    """Runs npu-smi by `run(argv, timeout, env=...)`, which answers with rc, stdout, stderr and timed_out."""

    def __init__(self, run, path, timeout, install_path):
        self.run, self.path, self.timeout = run, path, timeout
        self.environment = {"LD_LIBRARY_PATH": library_path(install_path)}

    def ask(self, arguments, parse, timeout=None):
        """The parsed answer of `npu-smi ARGUMENTS`; QueryError when there is none. A status other than 0 is never data."""
        command = "npu-smi " + " ".join(arguments)
        seconds = self.timeout if timeout is None else timeout
        try:
            result = self.run([self.path] + arguments, seconds, env=self.environment)
        except Exception as error:  # the runner's own type is not known here; without a code it is a fault of ours
            code = getattr(error, "code", None)
            if code is None:
                raise
            raise QueryError("npu-smi", "npu_smi_missing" if code == "command_missing" else code, str(error), command=command) from error
        if result.timed_out:
            message = "`%s` did not answer within %g seconds and was killed" % (command, seconds)
            raise QueryError("npu-smi", "npu_smi_timeout", message, command=command)
        if result.rc != 0:
            said = (result.stdout + "\n" + result.stderr).strip()
            known = _npu_smi.vendor_error(said)
            message = "`%s` ended with status %d: %s" % (command, result.rc, known.message if known else said[-500:] or "no text")
            details = {} if known is None else {"cause": known.cause, "return": known.ret}
            raise QueryError("npu-smi", "npu_smi_failed", message, command=command, rc=result.rc, **details)
        try:
            return parse(result.stdout)
        except _npu_smi.NpuSmiError as error:
            details = {key: value for key, value in error.as_dict().items() if key not in ("code", "message")}
            raise QueryError("npu-smi", error.code, "`%s`: %s" % (command, error.message), command=command, **details) from error

    def boards(self, npu_ids):
        """({npu_id: board}, first error) inside one deadline. A query that hangs ends it: the next one would hang as well."""
        boards, first, deadline = {}, None, time.monotonic() + self.timeout
        for npu_id in npu_ids:
            arguments = ["info", "-t", "board", "-i", str(npu_id)]
            left = deadline - time.monotonic()
            if left <= 0:
                message = "no time was left for `npu-smi %s`" % " ".join(arguments)
                return boards, first or QueryError("npu-smi", "npu_smi_timeout", message)
            try:
                boards[npu_id] = self.ask(arguments, _npu_smi.parse_info_board, left)
            except QueryError as error:
                first = first or error
                if error.code == "npu_smi_timeout":
                    return boards, first
        return boards, first


def ask_dcmi(client, timeout):
    """{"version", "chips"} with the health of each chip merged in; QueryError when DCMI does not answer."""
    deadline = time.monotonic() + timeout
    try:
        version = client.call("open", max(0.0, deadline - time.monotonic()))
        chips = client.call("chips", max(0.0, deadline - time.monotonic()))
        states = client.call("health", max(0.0, deadline - time.monotonic()))
    except DcmiError as error:
        details = {key: value for key, value in error.as_dict().items() if key not in ("code", "message")}
        raise QueryError("dcmi", error.code, error.message, **details) from error
    by_place = {(state["card_id"], state["device_id"]): state for state in states}
    for chip in chips:
        state = by_place.get((chip["card_id"], chip["device_id"]), {})
        chip["health"], chip["error_codes"] = state.get("health"), state.get("error_codes")
        chip["error"] = chip["error"] or state.get("error")
    return {"version": version, "chips": chips}
