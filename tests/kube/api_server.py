#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stand-in for the Kubernetes API server, for Nodes, RuntimeClasses, pods and what a DaemonSet needs. See README.md beside this file."""

import argparse
import base64
import json
import os
import secrets
import signal
import ssl
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

import kube_cluster
from kube_cluster import DAEMON_SET, MORE, NAMESPACE, POD, SERVICE_ACCOUNT
from kube_rules import NODE, RUNTIME_CLASS, ApiError
from kube_store import PATCHES, Store

VERSION = {"major": "1", "minor": "31", "gitVersion": "v1.31.0+standin", "gitCommit": "", "gitTreeState": "clean",
           "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "", "platform": "linux/amd64"}
OPEN_PATHS = ("/healthz", "/livez", "/readyz", "/version")
METHOD_VERBS = {"PATCH": "patch", "PUT": "update", "POST": "create", "DELETE": "delete"}
ALL_VERBS = ("get", "list", "create", "update", "patch", "delete")
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def discovery():
    """{path: answer} of what kinds there are, as clients ask before anything else."""
    found = {"/api": {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}}
    groups = {}
    for kind in (NODE, RUNTIME_CLASS, *MORE):
        place = f"/apis/{kind.group}/{kind.version}" if kind.group else "/api/v1"
        resources = found.setdefault(place, {"kind": "APIResourceList", "groupVersion": kind.api_version, "resources": []})["resources"]
        common = {"namespaced": kind.namespaced, "kind": kind.name}
        resources.append({"name": kind.resource, "singularName": kind.name.lower(), **common, "verbs": list(ALL_VERBS)})
        if kind.has_status:
            resources.append({"name": kind.resource + "/status", "singularName": "", **common, "verbs": ["get", "patch", "update"]})
        if kind.group:
            version = {"groupVersion": kind.api_version, "version": kind.version}
            groups[kind.group] = {"name": kind.group, "versions": [version], "preferredVersion": version}
    found.update({f"/apis/{name}": {"kind": "APIGroup", "apiVersion": "v1", **group} for name, group in groups.items()})
    return {**found, "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": list(groups.values())}}


DISCOVERY = discovery()


class Handler(BaseHTTPRequestHandler):
    """One request: who asks, what for, may they, do it."""

    protocol_version = "HTTP/1.1"
    server_version = "kube-api-standin"
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def _answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        path = unquote(url.path).rstrip("/") or "/"
        try:
            self.server.note(self.command, path)
            if path in OPEN_PATHS[:3]:
                return self._send(200, b"ok", "text/plain")
            user = self._user(path)
            if path == "/version":
                return self._send_json(200, VERSION)
            if path in DISCOVERY and self.command == "GET":
                return self._send_json(200, DISCOVERY[path])
            if path == REVIEWS and self.command == "POST":
                return self._send_json(201, self.server.rights.review(user, self._json(body)))
            where = kube_cluster.place(path)
            verb = METHOD_VERBS.get(self.command) or ("get" if where.name else "list")
            self._may(user, verb, where)
            query = dict(parse_qsl(url.query))
            if where.kind is POD and verb == "list":
                return self._send_json(200, self._pods(where, query))
            code, result = self._do(verb, where, query, body)
            self.server.after(verb, where.name)
            if verb not in ("get", "list"):
                self.server.reconcile()
            return self._send_json(code, result)
        except ApiError as error:
            return self._send_json(error.code, error.body())

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

    def _user(self, path):
        scheme, _, token = (self.headers.get("Authorization") or "").partition(" ")
        user = self.server.tokens.get(token) if scheme.lower() == "bearer" else None  # the client in a pod writes it small
        if user is None and path not in OPEN_PATHS:
            raise ApiError(401, "Unauthorized", "Unauthorized")
        return user

    def _may(self, user, verb, where):
        kind, name = where.kind, where.name
        asked = f"{kind.resource}/{where.subresource}" if where.subresource else kind.resource
        if not self.server.rights.may(user, verb, kind.group, asked):
            whole = f"{kind.resource}.{kind.group}" if kind.group else kind.resource
            what = f'{whole} "{name}" is' if name else f"{whole} is"
            scope = f'in the namespace "{where.namespace}"' if where.namespace else "at the cluster scope"
            who = f'User "{user["name"]}" cannot {verb} resource "{asked}"'
            message = f'{what} forbidden: {who} in API group "{kind.group}" {scope}'
            details = {"kind": kind.resource, **({"name": name} if name else {}), **({"group": kind.group} if kind.group else {})}
            raise ApiError(403, "Forbidden", message, details)

    def _pods(self, where, query):
        """A page of pods; like the real server, it goes on where the token of the last page says."""
        if query.get("watch"):
            raise ApiError(405, "MethodNotAllowed", "this stand-in has no watch")
        loose = [] if where.namespace or query.get("labelSelector") or query.get("fieldSelector") else self.server.pods
        pods = loose + self.server.stores[POD].list(query.get("labelSelector", ""), query.get("fieldSelector", ""), where.namespace)
        start = int(query.get("continue") or 0)
        end = start + (int(query.get("limit") or 0) or len(pods))
        metadata = {"resourceVersion": self.server.store.version()}
        if end < len(pods):
            metadata.update({"continue": str(end), "remainingItemCount": len(pods) - end})
        return {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": pods[start:end]}

    def _do(self, verb, where, query, body):
        store, kind, name, subresource = self.server.stores[where.kind], where.kind, where.key, where.subresource
        if query.get("watch") in ("1", "true"):
            raise ApiError(405, "MethodNotAllowed", "this stand-in has no watch")
        if verb == "list":
            items = store.list(query.get("labelSelector", ""), query.get("fieldSelector", ""), where.namespace)
            return 200, {"kind": kind.name + "List", "apiVersion": kind.api_version, "metadata": {"resourceVersion": store.version()},
                         "items": items}
        if verb == "get":
            return 200, store.get(name)
        if verb == "delete":
            gone = store.delete(name, (self._json(body) if body else {}).get("preconditions"))
            return 200, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
                         "details": {**kind.details(where.name), "uid": gone["metadata"]["uid"]}}
        dry_run = query.get("dryRun") == "All"
        content_type = (self.headers.get("Content-Type") or "").partition(";")[0].strip()
        if verb == "patch" and content_type not in PATCHES:
            raise ApiError(415, "UnsupportedMediaType", "the body of the request was in an unknown format - accepted media types include: "
                           + ", ".join(sorted(PATCHES)))
        sent = self._json(body, list if content_type == "application/json-patch+json" else dict)
        if subresource == "token":
            return 201, self.server.issue(where, sent)
        if verb == "patch":
            return 200, store.patch(name, content_type, sent, subresource, dry_run)
        if verb == "update":
            code = 200 if store.has(name) else 201
            return code, store.replace(name, sent, subresource, dry_run)
        if where.name or (kind.namespaced and not where.namespace):
            raise ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
        return 201, store.create(self._placed(sent, where), dry_run)

    def _placed(self, sent, where):
        """A new object in the namespace of its address, which must be there."""
        if not where.kind.namespaced:
            return sent
        if where.namespace not in ("default", "kube-system") and not self.server.stores[NAMESPACE].has(where.namespace):
            raise NAMESPACE.not_found(where.namespace)
        return {**sent, "metadata": {**(sent.get("metadata") or {}), "namespace": where.namespace}}

    def _json(self, body, form=dict):
        try:
            sent = json.loads(body)
        except ValueError as error:
            raise ApiError(400, "BadRequest", f"error decoding: {error}") from error
        if not isinstance(sent, form):
            raise ApiError(400, "BadRequest", "the body has the wrong form for its Content-Type")
        return sent

    def _send_json(self, code, value):
        self._send(code, json.dumps(value).encode(), "application/json")

    def _send(self, code, data, content_type):
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class ApiServer(ThreadingHTTPServer):
    """The server; usable in a test as a context manager: `with ApiServer() as api: api.kubeconfig(path)`."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address=("127.0.0.1", 0), tls_dir=None):
        super().__init__(address, Handler)
        self.store = Store()
        self.runtime_classes = Store(RUNTIME_CLASS, self.store.count)
        self.stores = {NODE: self.store, RUNTIME_CLASS: self.runtime_classes, **{kind: Store(kind, self.store.count) for kind in MORE}}
        self.rights = kube_cluster.Rights(self.stores)
        self.pods = []
        self.tokens = {}
        self.requests = []
        self.after = lambda verb, name: None
        self.controller = threading.Lock()
        self._thread = None
        self._ca = None
        if tls_dir is not None:
            self._ca = make_certificate(Path(tls_dir), self.server_address[0])
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._ca, self._ca.with_suffix(".key"))
            self.socket = context.wrap_socket(self.socket, server_side=True)

    def note(self, method, path):
        self.requests.append((method, path))

    @property
    def url(self):
        host, port = self.server_address[:2]
        return f"{'https' if self._ca else 'http'}://{host}:{port}"

    def add_user(self, name, verbs=ALL_VERBS, token=None):
        """Return the token of a new user who may do these verbs: on everything, or {resource: verbs}."""
        token = token or secrets.token_hex(24)
        self.tokens[token] = {"name": name, "verbs": dict(verbs) if isinstance(verbs, dict) else {"*": tuple(verbs)}}
        return token

    def add_account(self, namespace, name, pod=None, node=None):
        """Return a token of a ServiceAccount, as kubelet has one made for a pod; what it may do, RBAC says."""
        token = kube_cluster.new_token()
        self.tokens[token] = kube_cluster.account_user(namespace, name, pod, node)
        return token

    def issue(self, where, request):
        """The answer to a TokenRequest."""
        self.stores[SERVICE_ACCOUNT].get(where.key)
        bound = (request.get("spec") or {}).get("boundObjectRef") or {}
        pods = self.stores[POD]
        pod = pods.get(f"{where.namespace}/{bound['name']}") if bound.get("kind") == "Pod" else None
        token = self.add_account(where.namespace, where.name, bound.get("name"), pod and pod["spec"].get("nodeName"))
        return {**request, "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": {}, "status": {"token": token}}

    def reconcile(self):
        """What the controller of DaemonSets does, after each change."""
        if self.stores[DAEMON_SET].list() or self.stores[POD].list():
            with self.controller:
                kube_cluster.reconcile(self.stores)

    def add_node(self, name, labels=None, capacity=None):
        """Create a Node as a kubelet does when it joins, without any condition: nobody reports here."""
        capacity = {"cpu": "8", "memory": "16777216Ki", "pods": "110", **(capacity or {})}
        own = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
        return self.store.create({
            "metadata": {"name": name, "labels": {**own, **(labels or {})}},
            "status": {"capacity": capacity, "allocatable": dict(capacity)}})

    def add_pod(self, name, namespace="default", runtime_class=None, phase="Running"):
        spec = {"containers": [{"name": "main"}], **({"runtimeClassName": runtime_class} if runtime_class else {})}
        self.pods.append({"metadata": {"name": name, "namespace": namespace}, "spec": spec, "status": {"phase": phase}})

    def kubeconfig(self, path, token, name="standin"):
        """Write a kubeconfig that only its owner can read."""
        cluster = {"server": self.url}
        if self._ca:
            cluster["certificate-authority-data"] = base64.b64encode(self._ca.read_bytes()).decode()
        text = json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": name, "preferences": {},
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": self.tokens[token]["name"], "user": {"token": token}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": self.tokens[token]["name"]}}]}, indent=1)
        path = Path(path)
        new = path.with_name(path.name + ".new")
        new.unlink(missing_ok=True)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text + "\n")
        new.replace(path)
        return path

    def __enter__(self):
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self.shutdown()
        self._thread.join()
        self.server_close()


def make_certificate(folder, host):
    """Make a self-signed certificate for this address with the openssl command; its key lies beside it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    certificate = folder / "api.crt"
    kind = "IP" if host.replace(".", "").isdigit() else "DNS"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30",
                    "-subj", "/CN=kube-api-standin", "-addext", f"subjectAltName={kind}:{host}", "-keyout", certificate.with_suffix(".key"),
                    "-out", certificate], check=True, capture_output=True)
    return certificate


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listen", default="127.0.0.1:6443", metavar="ADDRESS:PORT", help="port 0 takes a free one (default: %(default)s)")
    parser.add_argument("--kubeconfig", required=True, help="file to write for the user 'admin', once the server listens")
    parser.add_argument("--viewer-kubeconfig", help="the same for the user 'viewer', who may only get and list")
    parser.add_argument("--node", action="append", default=[], metavar="NAME", help="a Node that is there from the start; may be repeated")
    parser.add_argument("--used", metavar="FILE", help="write there, at the end, which rules of RBAC were used and what was refused")
    parser.add_argument("--tls", metavar="DIR", help="speak https with a certificate made in DIR (needs the openssl command)")
    options = parser.parse_args()
    address, _, port = options.listen.rpartition(":")
    server = ApiServer((address, int(port)), options.tls)
    for name in options.node:
        server.add_node(name)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if options.viewer_kubeconfig:
        server.kubeconfig(options.viewer_kubeconfig, server.add_user("viewer", ("get", "list")))
    server.kubeconfig(options.kubeconfig, server.add_user("admin"))
    print(f"kube API stand-in listens on {server.url}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        if options.used:
            Path(options.used).write_text(json.dumps({"used": sorted(server.rights.used), "refused": sorted(server.rights.refused)}))
        server.server_close()


if __name__ == "__main__":
    main()
