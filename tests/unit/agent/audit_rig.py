# SPDX-License-Identifier: GPL-3.0-or-later
"""An audit without an agent: on a loop of its own, with a kubelet that answers as it is told."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from agent_rig import RESOURCE


def leave(audit, *ids, reason=None, preferred=None):
    audit.leave(RESOURCE, list(ids), [], answer={}, reason=reason, seconds=0.001, preferred=preferred)


def lines(path):
    try:
        return [json.loads(line) for line in path.read_text().splitlines()]
    except FileNotFoundError:
        return []


@pytest.fixture
def audited(package, tmp_path):
    """run(what): an Audit with a kubelet that answers `rows` or does as `answer` says; `what(audit, asked)` is a coroutine."""
    from npu_agent import audit

    def run(what, rows=(), answer=None, end=True):
        async def body():
            asked = []

            async def containers():
                asked.append(asyncio.get_running_loop().time())
                if isinstance(answer, Exception):
                    raise answer
                return list(rows) if answer is None else await answer()

            settings = SimpleNamespace(audit_file=str(tmp_path / "audit.jsonl"), pod_resources="/x", kernel_log="")
            made = audit.Audit(settings, lambda *_unused, **_fields: None, containers, lambda _chip: [])
            task = asyncio.ensure_future(made.run())
            await asyncio.wait_for(what(made, asked), 60)  # a test that waits for what does not come is to fail
            task.cancel()
            if end:
                await made.finish()
            return made, asked

        made, asked = asyncio.run(body())
        return made, asked, lines(tmp_path / "audit.jsonl")

    return run
