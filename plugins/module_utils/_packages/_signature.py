# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Signatures and revocation lists that lie beside a package, checked by openssl. Private to the collection.

The vendor ships ``.cms``, ``.p7s`` and ``.crl`` files in its archives ("Ascend packages" fact sheet, 1.1). A signature is detached
and in PEM or DER. What is configured is trusted, and nothing else: the system's own authorities would let anybody sign.
"""

import calendar
import os
import re
import tempfile
import time

from ansible_collections.npu.fleet.plugins.module_utils._command import run
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

SUFFIXES = (".p7s", ".cms")
_TIMEOUT = 600
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class Trust(object):
    """Whom to believe: a PEM file of authorities, a revocation list for all packages (or None), and the openssl to ask."""

    def __init__(self, ca=None, crl=None, openssl="openssl"):
        self.ca, self.crl, self.openssl = ca, crl, openssl


def companions(name, names):
    """Return (signature file, revocation list) that lie beside the package ``name``; None for what does not."""
    stem = name[:-4] if name.endswith(".run") else name
    signature = next((word + suffix for word in (name, stem) for suffix in SUFFIXES if word + suffix in names), None)
    lists = [word for word in (name + ".crl", stem + ".crl") if word in names] or sorted(word for word in names if word.endswith(".crl"))
    return signature, lists[0] if len(lists) == 1 or (lists and lists[0].startswith(stem)) else None


def check(name, path, signature, crl, *, trust, now=None):
    """Return what the signature at path ``signature`` says of the package ``name`` at ``path``; raise FleetError when it is not good.

    Without an authority to believe nothing is checked, and the answer says so.
    """
    answer = {"file": os.path.basename(signature), "verified": False, "signer": None, "crl": None, "crl_issued": None, "crl_age_days": None}
    if not trust.ca:
        return answer
    crl = crl or trust.crl
    with tempfile.TemporaryDirectory(prefix="npu-fleet-") as folder:
        anchors = os.path.join(folder, "anchors.pem")
        text = _read(trust.ca)
        words = []
        if crl:
            facts = _crl(crl, trust)
            age = _age(facts["issued"], time.time() if now is None else now)
            answer.update(crl=os.path.basename(crl), crl_issued=_date(facts["issued"]), crl_age_days=age)
            text += "\n" + facts["pem"]
            words = ["-crl_check"]
        with open(anchors, "w") as stream:
            stream.write(text)
        signer = os.path.join(folder, "signer.pem")
        only = ["-no-CApath"] + (["-no-CAstore"] if _is_3(trust) else [])
        done = _openssl(
            trust,
            ["cms", "-verify", "-binary", "-inform", _form(signature), "-in", signature, "-content", path, "-CAfile", anchors]
            + only + words + ["-purpose", "any", "-signer", signer, "-out", os.devnull],
        )
        if done.rc:
            reason = _reason(done.stderr)
            raise FleetError(
                "The signature beside %s does not prove it: %s." % (name, reason), "signature_invalid", "verify", object=name,
                observed=reason,
                hint="Copy package, signature and revocation list from the vendor again, and look at whom npu_fleet_signature_ca trusts: "
                     "`openssl x509 -noout -subject -enddate -in %s`." % trust.ca,
            )
        answer["verified"] = True
        found = re.search(r"^subject=\s*(.*)$", _openssl(trust, ["x509", "-noout", "-subject", "-in", signer]).stdout, re.MULTILINE)
        answer["signer"] = found.group(1).strip() if found else None
    return answer


def _openssl(trust, words):
    done = run([trust.openssl] + words, _TIMEOUT)
    if done.timed_out:
        raise FleetError("`%s %s` did not end in %d s." % (trust.openssl, words[0], _TIMEOUT), "signature_timeout", "verify")
    return done


def _is_3(trust):
    """Before 3.0 there is no store to switch off, and the option is an error."""
    found = re.match(r"OpenSSL (\d+)\.", _openssl(trust, ["version"]).stdout)
    return bool(found and int(found.group(1)) >= 3)


def _read(path):
    try:
        with open(path) as stream:
            text = stream.read()
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(path, str(error)) from error
    if "-----BEGIN" not in text:
        raise _unusable(path, "it is no PEM file")
    return text


def _unusable(path, reason):
    return FleetError(
        "%s can not be used to check signatures: %s." % (path, reason), "signature_trust", "verify", object=path, observed=reason,
        hint="npu_fleet_signature_ca is a PEM file of the vendor's authorities: `openssl x509 -in FILE -inform DER -out FILE.pem`.",
    )


def _form(path):
    try:
        with open(path, "rb") as stream:
            return "PEM" if stream.read(4096).lstrip().startswith(b"-----BEGIN") else "DER"
    except OSError as error:
        raise _unusable(path, str(error)) from error


def _crl(path, trust):
    done = _openssl(trust, ["crl", "-in", path, "-inform", _form(path), "-lastupdate"])
    issued = re.search(r"^lastUpdate=(.*)$", done.stdout, re.MULTILINE)
    if done.rc or not issued:
        raise FleetError(
            "The revocation list %s can not be read: %s." % (path, _reason(done.stderr)), "crl_invalid", "verify", object=path,
            hint="`openssl crl -noout -text -in %s`" % path,
        )
    return {"issued": _seconds(issued.group(1)), "pem": done.stdout[done.stdout.index("-----BEGIN"):]}


def _seconds(text):
    """Seconds of "Jan  5 09:34:43 2026 GMT"; the C library's month names depend on the locale."""
    month, day, clock, year = text.split()[:4]
    hours, minutes, seconds = (int(number) for number in clock.split(":"))
    return calendar.timegm((int(year), _MONTHS.index(month) + 1, int(day), hours, minutes, seconds))


def _date(seconds):
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))


def _age(seconds, now):
    return int((now - seconds) // 86400)


def _reason(stderr):
    """The telling part of openssl's error lines, which end in "reason:file:line:" or "Verify error:reason"."""
    said = re.findall(r"[Vv]erify error:\s*(.+)$", stderr, re.MULTILINE)
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    fields = [line.split(":") for line in lines if line.count(":") >= 5]
    named = [" ".join(part for part in row[3:6] if part) for row in fields]
    return (said or named or lines or ["openssl gave no reason"])[-1]
