# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A cluster through the kubernetes client: one API server, and its Nodes. Runs on the controller only. Private to the collection."""

import ipaddress
import json
import os
import random
import time
import traceback
from urllib.parse import urlsplit
from urllib.request import getproxies

from ansible.module_utils.basic import missing_required_lib

from ansible_collections.npu.fleet.plugins.module_utils import _kube_node
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError, fail
from ansible_collections.npu.fleet.plugins.module_utils._hardware._api_request import send
from ansible_collections.npu.fleet.plugins.module_utils._hardware._token import keep_keys_tidy

IMPORT_ERROR = None
try:
    import urllib3.exceptions
    import yaml
    from kubernetes import client, config
    from kubernetes.client.rest import ApiException
    from kubernetes.config.config_exception import ConfigException
except ImportError:
    IMPORT_ERROR = traceback.format_exc()

_VERBS = {"get": "read", "patch": "change", "update": "change", "create": "create", "delete": "delete", "list": "list"}
_BUSY = (429, 503, 504)
_LONGEST_PAUSE = 2.0


def run_module(module, run):
    """The end of a module that talks to a cluster: exits with ``run(params, check_mode, add_no_log_values)``, or fails in words."""
    if IMPORT_ERROR:
        module.fail_json(msg=missing_required_lib("kubernetes", reason="to talk to the cluster from the controller. "
                                                  "Install it with: pip install kubernetes"), exception=IMPORT_ERROR)
    try:
        result = run(module.params, module.check_mode, module.no_log_values.update)
    except FleetError as error:
        fail(module, error)
    module.exit_json(**result)


def is_loopback(url):
    """Say if a URL names this machine."""
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def without_userinfo(url):
    """Return a URL without name and password."""
    parts = urlsplit(url)
    return url if "@" not in parts.netloc else parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _config_error(message, path, hint=None, observed=None):
    return FleetError(message, code="kube_config", object=path, observed=observed, hint=hint)


def load_configuration(kubeconfig, context):
    """Return the client's configuration for one context of a kubeconfig. No text of the file gets into an error."""
    path = kubeconfig or os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
    missing = [part for part in path.split(os.pathsep) if part and not os.path.exists(os.path.expanduser(part))]
    if kubeconfig and missing or len(missing) == len(path.split(os.pathsep)):
        raise _config_error("There is no kubeconfig at %s on the controller." % path, path,
                            hint="Set 'kubeconfig' to a file that the user who runs the playbook can read.")
    configuration = client.Configuration()
    try:
        config.load_kube_config(config_file=path, context=context, client_configuration=configuration, persist_config=False)
    except yaml.YAMLError as error:
        # The parser's own text quotes the file, so only the place is told.
        mark = getattr(error, "problem_mark", None)
        place = " (line %d)" % (mark.line + 1) if mark else ""
        raise _config_error("The kubeconfig %s is not YAML%s." % (path, place), path,
                            hint="Check it with 'kubectl --kubeconfig %s config view'." % path) from None
    except ConfigException as error:
        raise _config_error("The kubeconfig %s cannot be used%s: %s" % (path, " with context %s" % context if context else "", error), path,
                            hint="See 'kubectl --kubeconfig %s config get-contexts'." % path) from None
    except OSError as error:
        raise _config_error("The kubeconfig %s cannot be read: %s." % (path, error.strerror or type(error).__name__), path) from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _config_error("The kubeconfig %s has not the form of a kubeconfig (%s)." % (path, type(error).__name__), path,
                            hint="Check it with 'kubectl --kubeconfig %s config view'." % path) from None
    if is_loopback(configuration.host) and configuration.proxy in getproxies().values():
        # A proxy of the environment cannot know what listens on this machine; one named in the kubeconfig is somebody's decision.
        configuration.proxy = None
    configuration.retries = 0
    keep_keys_tidy(configuration, lambda: _config_error(
        "The token that the kubeconfig %s gives is not one line of printable characters." % path, path,
        hint="Look at the file or command that it is from, for example with `od -c`."))
    return configuration


def secrets(configuration):
    """Return the values of a configuration that must never be printed."""
    values = set()
    for text in list((configuration.api_key or {}).values()) + [getattr(configuration, "password", None)]:
        if text:
            values.update(word for word in text.split() if len(word) > 8)
    for url in (configuration.host, configuration.proxy):
        password = urlsplit(url).password if url else None
        if password:
            values.add(password)
    return values


def _cause(error):
    """Return the innermost reason of a urllib3 error in words."""
    while getattr(error, "reason", None) is not None and isinstance(error.reason, Exception):
        error = error.reason
    # In urllib3 1.x a refused connection is a kind of ConnectTimeoutError too.
    if isinstance(error, urllib3.exceptions.TimeoutError) and not isinstance(error, urllib3.exceptions.NewConnectionError):
        return "no answer in time"
    text = str(error)
    # "<urllib3...HTTPSConnection object at 0x7f..>: Failed to establish a new connection: [Errno 111] Connection refused"
    return text.rpartition(">: ")[2] or type(error).__name__


class Kind:
    """A kind of objects as errors speak of it: the words, and what mends a missing right or a missing object."""

    def __init__(self, name, resource, not_found, grant, look):
        self.name, self.resource, self.not_found, self.grant, self.look = name, resource, not_found, grant, look


NODE = Kind(
    "Node", "nodes", "node_not_found", "kubectl create clusterrole npu-fleet --verb=get,patch --resource=nodes; then bind it to that user.",
    "See 'kubectl get nodes': its name may differ from the inventory's. It appears when the kubelet joins.")


class Api:
    """Calls to one API server, with one deadline for all that is done through it. Errors are FleetError."""

    def __init__(self, configuration, timeout):
        self.host = without_userinfo(configuration.host)
        self._proxy = without_userinfo(configuration.proxy) if configuration.proxy else None
        self.client = client.ApiClient(configuration)
        self._end = time.monotonic() + timeout

    def left(self):
        """Seconds to the deadline."""
        return self._end - time.monotonic()

    def call(self, kind, verb, name, request, answers=None):
        """Make one request, again while the server is busy; return its answer, whose kind must be one of answers (the object itself).

        request gets the timeouts for the client. name is None for a list.
        """
        pause = 0.25
        while True:
            try:
                # A pair for connect and read: kubernetes before 36 silently ignores a single number that is not a whole one.
                seconds = max(self.left(), 0.1)
                return self._answer(request((seconds, seconds)), kind, verb, name, answers or (kind.name,))
            except ApiException as error:
                if error.status not in _BUSY or self.left() < pause:
                    raise self._refusal(error, kind, verb, name) from None
            except urllib3.exceptions.HTTPError as error:
                raise self._unreachable(error, verb, name) from None
            except ValueError as error:  # its text may quote a header, so it is not told
                raise FleetError("The request to the Kubernetes API at %s cannot be sent (%s)." % (self.host, type(error).__name__),
                                 code="kube_config", phase=verb, object=name,
                                 hint="Check the token and 'server' of the context in the kubeconfig.") from None
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def send(self, method, path, timeout, **more):
        """One request, for call(); see _api_request.py."""
        return send(self.client, method, path, ApiException, timeout=timeout, **more)

    def _answer(self, response, *asked):
        kind, verb, name, answers = asked
        try:
            found = json.loads(response.data.decode("utf-8"))
        except ValueError:
            found = None
        sent = found.get("kind") if isinstance(found, dict) else None
        if sent not in answers:
            message = "%s does not answer as a Kubernetes API: asked for %s, it sent something else." % (self.host, _what(kind, name))
            hint = "Check 'server' of the context in the kubeconfig."
            raise FleetError(message, code="kube_error", phase=verb, object=name, observed=sent, hint=hint)
        return found

    def _unreachable(self, error, verb, name):
        way = " through the proxy %s" % self._proxy if self._proxy else ""
        hint = "Check 'server' of the context in the kubeconfig, and from the controller: curl -k %s/version" % self.host
        if self._proxy:
            hint += ". If the API is to be reached directly, add its address to NO_PROXY."
        return FleetError("Cannot reach the Kubernetes API at %s%s: %s." % (self.host, way, _cause(error).rstrip(".")),
                          code="kube_unreachable", phase=verb, object=name, observed=self.host, hint=hint)

    def _refusal(self, error, kind, verb, name):
        """Turn the server's Status into an error that says what to do."""
        try:
            told = json.loads(error.body)
            told = told if isinstance(told, dict) else {}
        except (TypeError, ValueError):
            told = {}
        message = told.get("message") or error.reason or "no reason given"
        what = _what(kind, name)
        fields = {"phase": verb, "object": name, "observed": "HTTP %s: %s" % (error.status, message)}
        if error.status == 401:
            return FleetError("The Kubernetes API at %s does not know the credential of the kubeconfig." % self.host,
                              code="kube_unauthorized", **fields,
                              hint="The token or certificate is wrong or has expired: get a fresh kubeconfig.")
        if error.status == 403:
            return FleetError(
                "The Kubernetes API at %s forbids to %s %s: the user of the kubeconfig lacks the verb '%s' on resource '%s'."
                % (self.host, _VERBS[verb], what, verb, kind.resource), code="kube_forbidden", **fields, hint="Grant it: " + kind.grant)
        if error.status == 404 and told.get("kind") == "Status" and name is not None:
            return FleetError("The cluster at %s has no %s '%s'." % (self.host, kind.name, name), code=kind.not_found, hint=kind.look,
                              **fields)
        if error.status == 409:
            return FleetError("%s was changed by another writer in between." % (what[0].upper() + what[1:]), code="kube_conflict", **fields)
        return FleetError("The Kubernetes API at %s refused to %s %s: HTTP %s, %s." % (
            self.host, _VERBS[verb], what, error.status, str(message).rstrip(".")), code="kube_error", **fields)


def _what(kind, name):
    return "the %s '%s'" % (kind.name, name) if name is not None else "the %s of the cluster" % kind.resource


class NodeApi(Api):
    """get and patch of Nodes."""

    PATH = "/api/v1/nodes/{name}"

    def get(self, name):
        """Return the Node as the server has it."""
        return self.call(NODE, "get", name, lambda timeout: self.send("GET", self.PATH, timeout, names={"name": name}))

    def patch(self, name, body):
        """Send a strategic merge patch; return the Node as it is afterwards."""
        return self.call(NODE, "patch", name, lambda timeout: self.send("PATCH", self.PATH, timeout, names={"name": name}, body=body))


def ensure(api, name, want, check_mode=False):
    """Bring the user's keys of one Node to what is wanted: read, decide, patch; again from the start where another writer was faster.

    Returns {"before", "after", "changed", "kept", "node"}; node is the Node as last seen (in check mode: unchanged), kept as plan() has it.
    """
    attempts = 0
    while True:
        attempts += 1
        node = api.get(name)
        step = _kube_node.plan(node, want)
        if step["patch"] is None or check_mode:
            return {"before": step["before"], "after": step["after"], "changed": step["patch"] is not None, "kept": step["kept"],
                    "node": node}
        try:
            node = api.patch(name, step["patch"])
        except FleetError as error:
            if error.code != "kube_conflict":
                raise
            if api.left() <= 0:
                raise FleetError("The Node '%s' was changed by other writers each of %d times we tried." % (name, attempts),
                                 code="kube_conflict", phase="patch", object=name, observed=error.observed,
                                 hint="Find the other writer: kubectl get node %s -o yaml --show-managed-fields" % name) from None
            # Two writers that both wait the same time would meet again.
            time.sleep(random.uniform(0.02, 0.2))  # noqa: S311
            continue
        after = _kube_node.view(node, want, step["noted"])
        if after != step["after"]:
            raise FleetError("The API accepted the change of Node '%s' but shows other values than were sent." % name, code="kube_error",
                             phase="patch", object=name, observed=after,
                             hint="An admission webhook or another controller owns one of these keys.")
        return {"before": step["before"], "after": after, "changed": True, "kept": step["kept"], "node": node}
