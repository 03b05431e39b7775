# SPDX-License-Identifier: GPL-3.0-or-later
"""Takes secrets out of a text that an operator may send on. Pure. Rather a word too many than one secret: what is left out says so."""

import re

GONE = "[redacted]"
WORDS = r"passw(?:or)?d|passphrase|pwd|secret|token|credentials?|api[_-]?key|access[_-]?key|private[_-]?key|auth[_-]?key"
VALUE = r"\"(?:[^\"\\]|\\.)*\"?|'[^']*'?|[^\s,;&)\]}]+"

RULES = tuple((re.compile(pattern, re.IGNORECASE | re.DOTALL), put) for pattern, put in (
    # A key in PEM; one that was cut off has no end.
    (r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)", GONE),
    # https://user:password@host, https://token@host
    (r"([a-z][a-z0-9+.-]*://)[^\s/@]+@", rf"\1{GONE}@"),
    # Authorization: Bearer …; X-Auth-Token: …; password=…; "token": "…"
    (r"(\b(?:proxy-)?authorization[\"']?\s*[:=]\s*[\"']?)(?:(?:bearer|basic|digest|negotiate)\s+)?[^\s\"',;]+", rf"\1{GONE}"),
    (rf"([\w.-]*(?:{WORDS})[\w.-]*[\"']?\s*[:=]\s*)(?:{VALUE})", rf"\1{GONE}"),
    (r"\b(bearer\s+)[\w.~+/=-]{8,}", rf"\1{GONE}"),
    # --password VALUE, token VALUE: only what looks like no word.
    (rf"((?:{WORDS}|\bkey)\s+(?:is\s+)?)(?=[\w+/=.-]*[0-9+/=])[\w+/=.-]{{16,}}", rf"\1{GONE}"),
    # A JSON web token, as ServiceAccounts have it.
    (r"\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?", GONE),
))


def redact(text):
    for pattern, put in RULES:
        text = pattern.sub(put, text)
    return text
