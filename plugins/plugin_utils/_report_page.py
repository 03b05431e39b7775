# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report as one page: no script, nothing from elsewhere, fit for paper. Every text is escaped. Pure. Private to the collection."""

from __future__ import annotations

from html import escape

from ansible_collections.npu.fleet.plugins.plugin_utils._plan_checks import who
from ansible_collections.npu.fleet.plugins.plugin_utils._report import STATUSES, lines_of, words

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --card: #8881; --soft: #8883; }
:root { --bad: #b3261e; --warn: #8a5a00; --good: #1a7f37; --link: #0b57d0; }
@media (prefers-color-scheme: dark) { :root { --bad: #ff8a80; --warn: #f0b849; --good: #6fd08c; --link: #8ab4f8; } }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.15rem; margin: 0 0 .2rem; } h2 .tag { font-size: .85rem; font-weight: 600; }
p { margin: .3rem 0; } .soft { opacity: .75; } a { color: var(--link); }
section { border: 1px solid var(--line); border-radius: .5rem; padding: .9rem 1rem; margin: 1.2rem 0; break-inside: avoid; }
.wide { overflow-x: auto; margin: .6rem 0; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: baseline; padding: .3rem .9rem .3rem .5rem; border-bottom: 1px solid var(--line); }
th { font-size: .85rem; font-weight: 600; background: var(--card); white-space: nowrap; } tr:last-child td { border-bottom: 0; }
td:last-child { width: 100%; min-width: 14rem; } .nodes td:last-child { width: auto; min-width: 0; }
.found td:nth-child(3) { min-width: 20rem; }
td.code, code { font: 13px/1.4 ui-monospace, monospace; white-space: nowrap; } code { white-space: normal; overflow-wrap: anywhere; }
.steps .code:first-child { min-width: 8.5rem; } .steps .code { min-width: 6rem; }
.tag { border-radius: .6rem; padding: .05rem .55rem; background: var(--soft); white-space: nowrap; }
.error, .refused, .failed, .unreachable, .refuse { color: var(--bad); } .warning, .downgrade, .repair { color: var(--warn); }
.unchanged, .none, .no_npu, .note { opacity: .7; } .planned { color: var(--good); }
@media print { body { margin: 0; max-width: none; font-size: 10pt; } a { color: inherit; text-decoration: none; } }
"""
_VERDICTS = {
    "matched": "as in the catalog",
    "allowed": "no row of the catalog, but allowed together by it",
    "unlisted": "not listed together in the catalog",
    None: "not judged by the catalog",
}


def page(whole):
    """The report as HTML."""
    nodes = sorted(whole["nodes"].items(), key=lambda pair: (STATUSES.index(pair[1]["status"]), pair[0]))
    overview = _table(
        "nodes",
        ("node", "product", "chips", "status", "changes", "reboot"),
        [_overview(name, one) for name, one in nodes],
    )
    body = "".join(_node(name, one) for name, one in nodes)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">\n'
        f"<title>NPU plan: {escape(words(whole))}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f'<h1>NPU plan</h1>\n<p>{escape(words(whole))}</p>\n<p class="soft">Made {escape(whole["made"])}. Nothing was changed.</p>\n'
        f"{overview}\n{body}</body>\n</html>\n"
    )


def _table(kind, heads, rows):
    cells = "".join(f"<th>{escape(head)}</th>" for head in heads)
    return f'<div class="wide"><table class="{kind}"><thead><tr>{cells}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _row(*cells):
    return f"<tr>{''.join(cells)}</tr>"


def _cell(text, kind=""):
    return f'<td class="{kind}">{escape(str(text))}</td>' if kind else f"<td>{escape(str(text))}</td>"


def _tag(word):
    return f'<td><span class="tag {escape(word)}">{escape(word.replace("_", " "))}</span></td>'


def _overview(name, one):
    node, plan = one["node"] or {}, one["plan"] or {}
    return _row(
        f'<td><a href="#{_anchor(name)}">{escape(name)}</a></td>',
        _cell(node.get("product") or node.get("family") or "-"),
        _cell(node.get("chips", "-")),
        _tag(one["status"]),
        _cell(plan["changes"] if plan else "-"),
        _cell(("yes" if plan["reboot_expected"] else "no") if plan else "-"),
    )


def _anchor(name):
    return "node-" + "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name)


def _node(name, one):
    status = f'<span class="tag {one["status"]}">{one["status"].replace("_", " ")}</span>'
    parts = [f'<section id="{_anchor(name)}">\n<h2>{escape(name)} {status}</h2>']
    if one["node"]:
        node = one["node"]
        known = [node["product"] or node["family"], f"{node['chips']} chips", node["os"], f"kernel {node['kernel']}", node["arch"]]
        parts.append(f'<p class="soft">{escape(", ".join(str(word) for word in known if word))}</p>')
    plan = one["plan"]
    if plan is None:
        parts.append("".join(f"<p>{escape(line)}</p>" for line in lines_of(one)))
    else:
        parts += [_steps(plan), _findings(plan["findings"]), _facts(plan)]
    return "\n".join(part for part in parts if part) + "\n</section>\n"


def _steps(plan):
    rows = [
        _row(_cell(step["component"], "code"), _tag(step["action"]), _cell(step["from"] or "-", "code"), _cell(step["to"], "code"),
             _cell("yes" if step["reboot"] else ""), _cell(step["reason"] or ""))
        for step in plan["components"]
    ]
    engine = plan["engine"]
    rows.append(_row(_cell("engine", "code"), _tag(engine["action"]), _cell(""), _cell(""), _cell(""), _cell(engine["reason"])))
    return _table("steps", ("component", "action", "now", "wanted", "reboot", "reason"), rows)


def _hint(text):
    """A sentence is to be read, a command is to be copied."""
    return _cell(text) if not text or text.endswith(".") else f"<td><code>{escape(text)}</code></td>"


def _findings(findings):
    rows = [
        _row(_tag(one["severity"]), _cell(one["object"], "code"), _cell(one["message"]), _hint(one["hint"]))
        for one in findings
    ]
    return _table("found", ("finding", "about", "what", "what mends it"), rows) if rows else ""


def _judged(verdict, release):
    if verdict == "matched" and release:
        return f"Versions: as in release {release} of the catalog."
    return f"Versions: {f'release {release}, ' if release else ''}{_VERDICTS[verdict]}."


def _facts(plan):
    lines = []
    if plan["release"] or plan["verdict"]:
        lines.append(_judged(plan["verdict"], plan["release"]))
    if plan["packages"]:
        estimate = plan["estimate"]
        lines.append(f"Time: about {estimate['seconds']} s. Not counted: {', '.join([*estimate['unknown'], 'transfer', 'reboot'])}.")
        if estimate["space"]:
            lines.append("Space: " + ", ".join(f"{size} MiB in {path}" for path, size in estimate["space"].items()) + ".")
        if not plan["way_back"]["ok"]:
            way = f"missing on the node: {', '.join(plan['way_back']['missing'])}"
        elif any(step["from"] for step in plan["components"]):
            way = "its packages lie on the node"
        else:
            way = "nothing is installed yet; npu.fleet.remove takes everything off again"
        lines.append(f"Way back: {way}.")
    if plan["holders"]:
        lines.append("Chips are in use by " + "; ".join(who(holder) for holder in plan["holders"]) + ".")
    return "".join(f"<p>{escape(line)}</p>" for line in lines)
