# SPDX-License-Identifier: GPL-3.0-or-later
"""`npu-agent labels`: in DaemonSet mode the one writer of this Node's labels and of its taint npu.fleet/not-ready.

It asks `serve` on this node what there is (/node) every `label_poll` seconds and holds no device. The Node is read when something has
changed, and every `label_period` seconds: a Node object that was made anew has its labels back within a minute. It is patched only where
something differs. With the default of 40 s (30 to 50), 10,000 nodes read 250 Nodes a second, a quarter of the requests that their kubelets
make to renew their leases; a node where nothing changes sends no patch at all.

The taint: put once the node has not been ready, or `serve` has not answered, for `taint_after` seconds (a slow answer or a restart is
shorter), lifted as soon as it is ready. A play's own taint (value `site`) is never touched. Whatever fails is told, once, and tried again:
without its rights this process writes nothing and stays.
"""

import http.client
import json
import os
import random
import sys
import time
import traceback

from . import __version__, stop
from ._hardware import _labels
from .labels_api import NodeApi, Trouble, ensure
from .log import Log, Once, Seldom

ASK_SECONDS = 3.0
ANSWER_BYTES = 1 << 20
SPREAD = 0.25  # of `label_period`, so that nodes that were started together do not stay together
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # after a failure
FAULT_SECONDS, TRACE_LINES = 60.0, 6  # between two lines about the same fault; the end of a traceback: where the fault is
READY = "npu.fleet/ready"


class Silent(Exception):
    """`serve` does not tell; the text says why."""


def ask(listen):
    """The facts of this node, from `serve`."""
    host, port = listen
    # It listens on all addresses, or on one: by the first of them it is reached from here.
    connection = http.client.HTTPConnection({"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host), port,  # noqa: S104
                                            timeout=ASK_SECONDS)
    try:
        connection.request("GET", "/node")
        answer = connection.getresponse()
        body = answer.read(ANSWER_BYTES)
        if answer.status != 200:
            raise Silent(f"npu-agent serve at {host}:{port} answers /node with {answer.status}")
        facts = json.loads(body)
        if not isinstance(facts, dict) or "ready" not in facts or "present" not in facts:
            raise Silent(f"what answers at {host}:{port} is not npu-agent serve")
        return facts
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Silent(f"npu-agent serve does not answer at {host}:{port}: {error or type(error).__name__}") from None
    finally:
        connection.close()


class Standing:
    """What the Node should show, from what was told and when. Pure but for its memory; times are monotonic."""

    def __init__(self, taint_after):
        self.taint_after = taint_after
        self.facts, self.since = None, None  # since: when it began not to be ready, None while it is
        self.seen_npu = False

    def take(self, facts, now):
        """facts: of /node, None when nobody answers."""
        self.facts = facts
        if facts is not None and (facts["ready"] or facts["present"] is False):
            self.since, self.seen_npu = None, facts["present"] is not False
            return
        self.seen_npu = self.seen_npu or bool(facts and facts["present"])
        self.since = now if self.since is None else self.since

    def lasting(self, now):
        """Whether it has not been ready for so long that others shall know."""
        return self.since is not None and now - self.since >= self.taint_after

    def labels(self, now):
        """Labels as they should be, None to leave them as they are: for a moment, or because nobody tells."""
        if self.facts is None or (self.since is not None and (self.facts["present"] is None or not self.lasting(now))):
            return None
        return _labels.labels_of(self.facts)

    def intent(self, now):
        """What the Node has to be written for at once when it changes; None while nothing is to be done."""
        return (self.labels(now), self.since is None) if self.since is None or self.lasting(now) else None

    def plan(self, node, now, keep):
        """(patch or None, labels of others) for the Node as it is."""
        have = (node.get("metadata") or {}).get("labels") or {}
        labels, put, only = self.labels(now), None, None
        if self.since is None:
            put = False
        elif self.lasting(now) and (self.seen_npu or "npu.fleet/family" in have):  # a node without NPU needs no taint
            put = True
            if labels is None:
                # Nobody tells, so nothing is known to have changed but that the node is not ready.
                labels, only = {READY: "false"}, (READY,)
        return _labels.patch_of(node, labels, put, keep, only=only)


class Writer:
    """The loop. api: see labels_api.NodeApi; asks() gives facts or raises Silent; pause() waits."""

    def __init__(self, settings, api, log, *, asks, clock=time.monotonic, pause=time.sleep, spread=random.uniform):
        self.settings, self.api, self.log = settings, api, log
        self.asks, self.clock, self.pause, self.spread = asks, clock, pause, spread
        self.standing = Standing(settings.taint_after)
        self.done = None  # the intent that the Node had when it was seen last
        self.due, self.failures, self.not_before = clock(), 0, clock()
        self.say_fault = Seldom(log, FAULT_SECONDS, clock)
        self.say_silent, self.say_trouble, self.say_others, self.say_ready = Once(log), Once(log), Once(log), Once(log)

    def run(self):
        while True:
            self.guarded()
            self.pause(self.settings.label_poll)

    def guarded(self):
        """A fault of ours must not end the only writer: what comes next may be right."""
        try:
            self.turn()
        except Exception as error:
            trace = traceback.format_exc().splitlines()[-TRACE_LINES:]
            self.say_fault(repr(error), "a fault of npu-agent", "error", cause=repr(error), trace=trace)

    def turn(self):
        """One question to `serve`, and what follows."""
        self.listen()
        now = self.clock()
        intent = self.standing.intent(now)
        if intent is not None and now >= self.not_before and (intent != self.done or now >= self.due):
            self.write(now, intent)

    def listen(self):
        try:
            facts = self.asks()
            self.say_silent.over()
        except Silent as silent:
            facts = None
            self.say_silent.event("serve does not answer", "warning", cause=str(silent))
        self.standing.take(facts, self.clock())
        if facts is not None:
            self.say_ready.event("ready" if facts["ready"] else "not ready", reasons=facts.get("reasons") if not facts["ready"] else [])

    def write(self, now, intent):
        """Bring the Node there. True when it is."""
        try:
            patch, others, node = ensure(self.api, lambda node: self.standing.plan(node, now, self.settings.label_keep), self.pause)
        except Trouble as trouble:
            self.failed(trouble)
            return False
        self.failures, self.done = 0, intent
        self.due = now + self.settings.label_period * (1 + self.spread(-SPREAD, SPREAD))
        self.say_trouble.over()
        if others:
            self.say_others("labels of others differ from what this node has; they stay", "warning", labels=others,
                            hint="if they are wrong: kubectl label node " + " ".join([self.api.name, *(f"{key}-" for key in others)]))
        else:
            self.say_others.over()
        self.tell(patch, node)
        return True

    def failed(self, trouble):
        pause = max(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(self.failures, 10)) * self.spread(0.5, 1.0), trouble.wait)
        self.failures += 1
        self.not_before = self.clock() + pause
        self.say_trouble.event(f"the Node is not written: {trouble.code}", "error", cause=str(trouble))

    def tell(self, patch, node):
        if patch is None:
            return
        labels = patch.get("metadata", {}).get("labels")
        if labels:
            self.log("labels written", labels=labels)
        if "spec" in patch:
            before = (node.get("spec") or {}).get("taints") or []
            put = len(patch["spec"]["taints"]) > len(before)
            facts = self.standing.facts
            self.log("taint put" if put else "taint lifted", "warning" if put else "info", taint=f"{_labels.TAINT}={_labels.AGENT}",
                     **({"reasons": facts["reasons"] if facts else ["npu-agent serve does not answer"]} if put else {}))

    def remove(self):
        """Take off all that is ours."""
        patch, _others, node = ensure(
            self.api, lambda node: _labels.patch_of(node, None, False, self.settings.label_keep, remove=True), self.pause)
        self.tell(patch, node)


def labels(settings, once=False, remove=False):
    """The exit status. Without `once` and `remove` it stays until a signal ends it."""
    stop.handle(lambda *_: sys.exit(0))  # also out of a request that hangs; the server takes a patch as a whole or not
    log = Log(settings.log_level)
    name = settings.node_name or os.environ.get("NODE_NAME", "")
    if not name:
        print("nobody says which Node this is: set `node_name`, or in a pod NODE_NAME from spec.nodeName", file=sys.stderr)
        return 2
    try:
        api = NodeApi(name, settings.kubeconfig)
    except Trouble as trouble:
        print(trouble, file=sys.stderr)
        return 2
    writer = Writer(settings, api, log, asks=lambda: ask(settings.listen))
    log("started", version=__version__, command="labels", node=name, api=api.host)
    try:
        if remove:
            writer.remove()
        elif once:
            writer.standing.taint_after = 0.0
            writer.listen()
            now = writer.clock()
            written = writer.write(now, writer.standing.intent(now))
            return 0 if written and writer.standing.facts is not None else 1
        else:
            writer.run()
    except Trouble as trouble:
        print(trouble, file=sys.stderr)
        return 1
    except SystemExit:
        log("stopped")
        os._exit(0)  # to take down what the client has loaded would cost a second on a busy node
    return 0
