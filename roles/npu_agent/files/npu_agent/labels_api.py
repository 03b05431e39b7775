# SPDX-License-Identifier: GPL-3.0-or-later
"""One Node at the API server, by the kubernetes client: read it, patch it. Only `npu-agent labels` imports this.

In a pod the ServiceAccount's own credential counts; a kubeconfig counts only where the setting names one. What lies in KUBECONFIG or in a
home may be of a cluster that this node has left.
"""

import json
import os
import random
from urllib.parse import urlsplit
from urllib.request import getproxies

import urllib3
import yaml
from kubernetes import client, config
from kubernetes.client.rest import ApiException
from kubernetes.config.config_exception import ConfigException

from ._hardware._api_request import send
from ._hardware._token import keep_keys_tidy

SECONDS = 10.0  # for one request
TRIES, SHORT, LONG = 5, 0.02, 0.2  # after a conflict; two writers that both wait the same time would meet again
GRANT = ("kubectl create clusterrole npu-agent --verb=get,patch --resource=nodes, and bind it to the ServiceAccount of this pod "
         "(the manifest of the collection has both)")


class Trouble(Exception):
    """code: config, unreachable, unauthorized, forbidden, missing, conflict, busy, refused. The text says what mends it.

    wait: seconds that the server wants to be left alone.
    """

    def __init__(self, code, text, wait=0.0):
        super().__init__(text)
        self.code, self.wait = code, wait


def configuration(kubeconfig):
    made = client.Configuration()
    try:
        if kubeconfig:
            if not os.path.exists(kubeconfig):
                raise Trouble("config", f"there is no {kubeconfig}, which `kubeconfig` names")
            config.load_kube_config(config_file=kubeconfig, client_configuration=made, persist_config=False)
        else:
            config.load_incluster_config(client_configuration=made)
    except ConfigException as error:
        where = kubeconfig or "the pod's ServiceAccount"
        raise Trouble("config", f"{where} gives no way to the Kubernetes API: {error}; in a pod mount the ServiceAccount's token, "
                                "elsewhere set `kubeconfig`") from None
    except (OSError, AttributeError, KeyError, TypeError, ValueError, yaml.YAMLError) as error:  # no text of it: it may be a secret
        raise Trouble("config", f"{kubeconfig or 'the credential of the pod'} cannot be used ({type(error).__name__})") from None
    if made.proxy in getproxies().values():
        made.proxy = None  # one of the environment is for the internet, not for the cluster's own address
    made.retries = 0
    keep_keys_tidy(made, lambda: Trouble("config", "the token for the Kubernetes API is not one line of printable characters; look at its "
                                         "file, for example with `od -c`"))
    return made


class NodeApi:
    """Requests about one Node. Each raises Trouble."""

    def __init__(self, name, kubeconfig):
        self.name, self.configuration = name, configuration(kubeconfig)
        parts = urlsplit(self.configuration.host)
        self.host = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        self.client = client.ApiClient(self.configuration)

    def get(self):
        return self.call("get")

    def patch(self, body):
        return self.call("patch", body)

    def call(self, verb, body=None):
        try:
            response = send(self.client, verb.upper(), "/api/v1/nodes/{name}", ApiException, names={"name": self.name}, body=body,
                            timeout=(SECONDS, SECONDS))
        except ApiException as error:
            raise self.refusal(verb, error) from None
        except urllib3.exceptions.HTTPError as error:
            raise Trouble("unreachable", f"the Kubernetes API at {self.host} cannot be reached: {cause(error)}") from None
        except (OSError, ConfigException) as error:  # the token is read again each minute, and may be gone by then
            raise Trouble("config", f"the credential for the Kubernetes API cannot be read: {error}") from None
        except ValueError as error:  # its text may quote a header, so it is not told
            raise Trouble("config", f"the request to the Kubernetes API at {self.host} cannot be sent ({type(error).__name__})") from None
        try:
            found = json.loads(response.data)
        except ValueError:
            found = None
        if not isinstance(found, dict) or found.get("kind") != "Node":
            raise Trouble("refused", f"{self.host} does not answer as a Kubernetes API does")
        return found

    def refusal(self, verb, error):
        try:
            told = json.loads(error.body)
            message = told.get("message") if isinstance(told, dict) else None
        except (TypeError, ValueError):
            message = None
        said = self.masked(message or error.reason or "no reason given")
        if error.status == 401:
            return Trouble("unauthorized", f"the Kubernetes API at {self.host} does not know our credential: {said}")
        if error.status == 403:
            return Trouble("forbidden", f"the right to {verb} the resource nodes is missing: {said}; grant it: {GRANT}")
        if error.status == 404:
            return Trouble("missing", f"the cluster has no Node {self.name}: {said}; it appears when kubelet joins, and `node_name` (or "
                                      "NODE_NAME, from spec.nodeName) must be its name")
        if error.status == 409:
            return Trouble("conflict", f"other writers change the Node {self.name} all the time: {said}")
        if error.status in (429, 503, 504):
            return Trouble("busy", f"the Kubernetes API at {self.host} is busy: {said}", wait_of(error))
        return Trouble("refused", f"the Kubernetes API at {self.host} refused to {verb} the Node {self.name}: HTTP {error.status}, {said}")

    def masked(self, text):
        for secret in (self.configuration.api_key or {}).values():
            for word in str(secret).split():
                if len(word) > 8:
                    text = text.replace(word, "***")
        return text


def wait_of(error):
    """The header Retry-After, as far as it is a number."""
    try:
        return min(60.0, max(0.0, float((error.headers or {}).get("Retry-After", 0))))
    except (TypeError, ValueError):
        return 0.0


def cause(error):
    """The innermost reason in words."""
    while isinstance(getattr(error, "reason", None), Exception):
        error = error.reason
    if isinstance(error, urllib3.exceptions.TimeoutError) and not isinstance(error, urllib3.exceptions.NewConnectionError):
        return "no answer in time"
    return str(error).rpartition(">: ")[2] or type(error).__name__


def ensure(api, plan, pause):
    """Read the Node, ask plan(node) for (patch or None, whatever), send it; again from the start where another writer was faster.

    Returns (patch, whatever, the Node as it was read). pause: waits so many seconds.
    """
    for left in reversed(range(TRIES)):
        node = api.get()
        patch, more = plan(node)
        try:
            if patch is not None:
                api.patch(patch)
            return patch, more, node
        except Trouble as trouble:
            if trouble.code != "conflict" or not left:
                raise
        pause(random.uniform(SHORT, LONG))  # noqa: S311  no secret
    raise AssertionError
