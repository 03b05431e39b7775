# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One request to the Kubernetes API by the kubernetes client's own connection and credential. For controller and agent, as _labels.py.

The client's classes for each kind of object are not used: with those that a Node is made of a module takes 1.0 s of processor instead of
0.5, and 10 MB more memory (kubernetes 37, measured), for each host of a play and in each agent; what they make of an answer is not needed.
"""

_ACCEPT = "application/json"
_PATCH = "application/strategic-merge-patch+json"
_AUTH = ["BearerToken"]  # the client's name for its credentials, whatever they are


def send(api, method, path, failed, *, names=None, query=None, body=None, timeout=None):
    """Return the response, whose `data` are bytes. Raises the client's errors, `failed` for anything but a 2xx.

    api: an ApiClient. failed: the client's ApiException. path: with {name} for each of names. body: a mapping; that of a PATCH is a
    strategic merge patch. timeout: a pair of seconds.
    """
    headers = {"Accept": _ACCEPT}
    if body is not None:
        headers["Content-Type"] = _PATCH if method == "PATCH" else _ACCEPT
    query = sorted((query or {}).items())
    if not hasattr(api, "param_serialize"):  # kubernetes before 36
        response = api.call_api(path, method, dict(names or {}), query, headers, body=body, auth_settings=_AUTH, _preload_content=False,
                                _return_http_data_only=True, _request_timeout=timeout)
        len(response.data)  # read now, so that a server that stops in the middle is an error of this call
        return response
    asked = {"path_params": names, "query_params": query, "header_params": headers, "auth_settings": _AUTH}
    response = api.call_api(*api.param_serialize(method, path, body=body, **asked), _request_timeout=timeout)
    response.read()
    if not 200 <= response.status <= 299:
        raise failed(http_resp=response)
    return response
