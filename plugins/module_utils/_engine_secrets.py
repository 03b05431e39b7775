# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Masking of credentials in text that may reach a result, a log or an error. Private to the collection.

A node uses it for the engine's own messages (dockerd quotes values of daemon.json in them), the controller for diffs.
"""

import re

MASK = "********"

SECRET_KEY = re.compile(
    r"token|passw(?:or)?d|passphrase|secret|credential|^auths?$|api[-_]?key|private[-_]?key|access[-_]?key|cookie"
    # All that stands in a table of headers: any of them may carry a login.
    r"|^(?:proxy-)?authorization$|[-_]auth$|^(?:http[-_]?)?headers?$", re.IGNORECASE
)

# user:password@ in an address, with or without a scheme. A password may hold "@" and "'": all up to the last "@" of the host's part goes.
_USERINFO = re.compile(r"(?<![^\s\"'/\[(,=])([^\s\"'/@:\[\](),=]+):([^\s\"/]+)@")
_USERINFO_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)[^\s\"/]+@")
# A comma ends a bare value where the next name=value follows.
_VALUE = (
    r"(?P<value>\"(?:[^\"\\]|\\.)*\"|'[^']*'|\[[^\]\n]*\]"
    r"|[^\s,;&\"'\]})](?:[^\s,;&\"'\]})]|,(?=[^\s,;&\"'\]})])(?![\w.-]+[=:][^\s=\]}]))*)"
)
_ASSIGNMENT = re.compile(
    r"(?P<key>[\w.-]*(?:token|passw(?:or)?d|passphrase|secret|credential|api[-_]?key|private[-_]?key|access[-_]?key)[\w.-]*)"
    r"(?P<middle>[\"']?\s*[=:]\s*)" + _VALUE,
    re.IGNORECASE,
)
# auth=..., X-Registry-Auth: ..., "auth": "..."; a word of prose after "auth: " stays.
_AUTH = re.compile(
    r"(?<![\w.-])(?P<key>[\w.-]*[-_]auth|auth(?=[\"']?\s*=|[\"']?:\S|[\"']?:\s*[\"'])|(?:proxy-)?authorization)(?P<middle>[\"']?\s*[=:]\s*)"
    r"(?!map\[|\{|basic\s|bearer\s)" + _VALUE,
    re.IGNORECASE,
)
# What follows in a header of HTTP. A login of Basic need not have a digit or "=" in it; after "bearer", words without are prose.
_CREDENTIALS = re.compile(
    r"\b(?P<scheme>basic)\s+[A-Za-z0-9+/=_-]{4,}|\b(?P<other>bearer)\s+(?=[^\s\"',]*[0-9=])[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE
)
# The TOML parser of containerd 1.x quotes the value that it can not take: "(3, 3): Can't convert VALUE(string) to config.AuthConfig".
_CONVERTED = re.compile(r"(?s)(\bconvert\s).+?(?=\([\w.*\[\]{} ]+\) to )")
# No message, and the patterns above take time that grows with the square of its length.
_LONG = re.compile(r"\S{1000,}")


def is_secret_key(key):
    """Return whether the value of ``key`` is a credential."""
    return SECRET_KEY.search(key) is not None


def mask_text(text):
    """Return free text with the passwords of addresses and of ``name=value`` pairs masked, and values that a parser could not take."""
    text = _LONG.sub(MASK, text)
    text = _CONVERTED.sub(lambda match: match.group(1) + MASK, text)
    text = _USERINFO_URL.sub(lambda match: match.group("scheme") + MASK + "@", text)
    text = _USERINFO.sub(MASK + "@", text)
    text = _CREDENTIALS.sub(lambda match: (match.group("scheme") or match.group("other")) + " " + MASK, text)
    text = _AUTH.sub(lambda match: match.group("key") + match.group("middle") + MASK, text)
    return _ASSIGNMENT.sub(lambda match: match.group("key") + match.group("middle") + MASK, text)


def mask_value(value, key=""):
    """Return a JSON value with its credentials masked."""
    if isinstance(value, dict):
        return {name: mask_value(inner, key if is_secret_key(key) else name) for name, inner in value.items()}
    if isinstance(value, list):
        return [mask_value(inner, key) for inner in value]
    if value is not None and is_secret_key(key):
        return MASK
    return mask_text(value) if isinstance(value, str) else value
