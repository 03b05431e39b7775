# SPDX-License-Identifier: GPL-3.0-or-later
"""Takes secrets out of a text that an operator may send on. Pure. Rather a word too many than one secret: what is left out says so.

Python lets no other thread run while it looks for a pattern, and a text may come from whoever can make the kernel print something. So a
text has a limit, no pattern begins with a repetition that could begin anywhere, and what stands between two parts of one is bounded.
"""

import re

GONE, CUT = "[redacted]", " [cut off]"
MOST = 4096  # characters of a text

NAMES = (r"passphrase|passw(?:or)?d|passcode|pwd|secret|token|credentials?|signature|"
         r"(?:api|access|private|auth|signing|encryption|account|storage|shared|master|licen[cs]e)[_-]?key")
MORE = r"[\w.-]{0,64}"  # of a name, after such a word
# With all that may stand between a name and its value: quotes, also in JSON that stands in JSON, = : => and the two in a URL's encoding.
IS = r"(?:\\{0,8}[\"']|%(?:25){0,3}2[27])?\s{0,64}(?:[:=]{1,2}>?|%(?:25){0,3}3[ad])\s{0,64}"
STRING = r"[bru]{0,2}\"(?:[^\"\\]|\\.)*\\?\"?|[bru]{0,2}'(?:[^'\\]|\\.|'')*\\?'?"
INNER = r"(?P<mark>\\{1,8}[\"'])(?:(?!(?<!\\)(?P=mark)).)*(?:(?P=mark))?"  # its end has as many backslashes as its beginning
LIST = r"[\[{](?:\"(?:[^\"\\]|\\.)*\\?(?:\"|\Z)|[^\]}\"])*[\]}]?"
BLOCK = r"[|>][-+0-9]{0,2}[ \t]*\n(?:[ \t]+[^\n]*\n?)+"  # of YAML
BARE = r"[^\s,;&)\]}]+"
# A pass phrase may have several words: up to one that has a value of its own, or to a bracket.
PHRASE = rf"{BARE}(?:\s+(?![^\s=:(]*[=:(])[^\s,;&)\]}}]+)*"
VALUE = rf"(?:{INNER}|{STRING}|{LIST}|{BLOCK}|{BARE})"

RULES = tuple((re.compile(pattern, re.IGNORECASE | re.DOTALL), put) for pattern, put in (
    # A key in PEM; one that was cut off has no end.
    (r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)", GONE),
    # https://user:password@host, https://token@host; a password may have @ and / in it, but what follows a port is a path.
    (r"(://)[^\s/:@]{0,256}:(?![0-9]{1,5}(?:[/\s]|\Z))[^\s\"']{0,512}@", rf"\1{GONE}@"),
    (r"(://)[^\s/]{1,512}@", rf"\1{GONE}@"),
    (r"(?<![\w:/@.-])([\w.-]{1,64}:)[^\s@/:,;]{1,256}@(?=[\w\[])", rf"\1{GONE}@"),
    # Authorization: SCHEME …, Cookie: …: all of the line, whatever the scheme.
    (rf"((?:authorization|cookie2?){IS})(?:{INNER}|{STRING}|[^\n]+)", rf"\1{GONE}"),
    # password=…, pass=…: of several words; then X-Auth-Token: …; "token": [… ]; key: …; sig=…
    (rf"((?:passphrase|passw(?:or)?d|pwd|pass|secret){MORE}{IS})(?:{INNER}|{STRING}|{LIST}|{BLOCK}|{PHRASE})", rf"\1{GONE}"),
    (rf"((?:(?:{NAMES}){MORE}|(?<![a-z])(?:keys?|sig)){IS}){VALUE}", rf"\1{GONE}"),
    # --password VALUE, -u user:VALUE
    (rf"((?<![\w.-])--?(?=[\w.-]{{0,64}}?(?:{NAMES}|pass))[\w.-]{{1,128}}\s{{1,64}})(?!-){VALUE}", rf"\1{GONE}"),
    (r"((?<![\w.-])--?u(?:ser)?\s{1,64})[^\s:]{1,64}:\S+", rf"\1{GONE}"),
    (r"\b(bearer\s{1,64})[\w.~+/=-]{8,}", rf"\1{GONE}"),
    # password "VALUE", token VALUE: without quotes only what looks like no word.
    (rf"((?:{NAMES}){MORE}\s{{1,64}}(?:is\s{{1,64}})?)(?:{INNER}|{STRING})", rf"\1{GONE}"),
    (rf"((?:(?:{NAMES}){MORE}|\bkey)\s{{1,64}}(?:is\s{{1,64}})?)(?=[\w+/.-]{{0,128}}(?:[0-9+/=]|(?-i:[a-z][A-Z])))[\w+/=.-]{{16,}}",
     rf"\1{GONE}"),
    # A JSON web token, as ServiceAccounts have it.
    (r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?", GONE),
))


def redact(text, most=MOST):
    """The text without secrets, of a longer one the beginning: up to a space, since half of a secret may not look like one."""
    if len(text) > most:
        text = text[:most].rpartition(" ")[0] + CUT
    for pattern, put in RULES:
        text = pattern.sub(put, text)
    return text
