# SPDX-License-Identifier: GPL-3.0-or-later
"""What is masked in the text of engines, and what stays to be read."""

import time

import pytest

from ansible_collections.npu.fleet.plugins.module_utils import _engine_units as units
from ansible_collections.npu.fleet.plugins.module_utils._command import Result
from ansible_collections.npu.fleet.plugins.module_utils._engine_secrets import MASK, is_secret_key, mask_text, mask_value

LOGIN = "dXNlcjpwYXNzd29yZA=="
GO_DUMP = (
    "{Registry:{Auths:map[http://r:{Username:u Password:abc,def Auth:dXNlcjpwYXNzd29yZA== IdentityToken:tok1}] "
    "Headers:map[Authorization:[Basic dXNlcjpwYXNz] X-Registry-Auth:[zzz yyy]]} SandboxImage:pause:3.9}"
)


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        (f"(3, 3): Can't convert {LOGIN}(string) to config.AuthConfig", f"(3, 3): Can't convert {MASK}(string) to config.AuthConfig"),
        ("(7, 1): Can't convert 48151623(int64) to string", f"(7, 1): Can't convert {MASK}(int64) to string"),
        ("Can't convert two\nlines (or so)(string) to int", f"Can't convert {MASK}(string) to int"),
        ("Can't convert [a b]([]interface {}) to string", f"Can't convert {MASK}([]interface {{}}) to string"),
        ("Can't convert x = 1(*toml.Tree) to string", f"Can't convert {MASK}(*toml.Tree) to string"),
        ("http://user:p@ss@proxy:3128", f"http://{MASK}@proxy:3128"),
        ("http://user:it's@proxy:3128/x@y", f"http://{MASK}@proxy:3128/x@y"),
        ("proxy user:p@ss@proxy:3128 and me@home", f"proxy {MASK}@proxy:3128 and me@home"),
        ("proxy user:it's@proxy:3128", f"proxy {MASK}@proxy:3128"),
        ("Authorization: Basic dXNlcjpwYXNz", f"Authorization: Basic {MASK}"),
        ("sent Basic YTpi", f"sent Basic {MASK}"),
        ("X-Registry-Auth: zzz", f"X-Registry-Auth: {MASK}"),
        ('{"auth": "abcdefgh"}', f'{{"auth": {MASK}}}'),
        ("tokens = ['aa', 'bb']", f"tokens = {MASK}"),
        ("PASSWORD=abc,x=1", f"PASSWORD={MASK},x=1"),
        ("password: abc, and more", f"password: {MASK}, and more"),
        ("Password:abc,def= Auth:", f"Password:{MASK} Auth:"),
        # to be read
        ("failed auth: no such host", "failed auth: no such host"),
        ("the bearer of news", "the bearer of news"),
        ("http://proxy:3128/a@b", "http://proxy:3128/a@b"),
        ("[plugins.cri.registry.configs.r.auth]", "[plugins.cri.registry.configs.r.auth]"),
        ("unknown service runtime.v1.RuntimeService", "unknown service runtime.v1.RuntimeService"),
    ],
)
def test_free_text(text, masked):
    assert mask_text(text) == masked


def test_a_configuration_as_go_prints_it():
    shown = mask_text(GO_DUMP)
    for secret in ("abc", "def", "dXNl", "tok1", "zzz", "yyy"):
        assert secret not in shown
    assert "SandboxImage:pause:3.9" in shown


def test_headers_are_secret():
    assert is_secret_key("X-Registry-Auth")
    assert mask_value({"header": {"X-Own": ["a"]}, "headers": {"Y": "b"}, "HttpHeaders": {"Z": "c"}, "heading": "d"}) == {
        "header": {"X-Own": [MASK]}, "headers": {"Y": MASK}, "HttpHeaders": {"Z": MASK}, "heading": "d",
    }


def test_the_last_line_of_a_message_whose_value_has_several():
    said = "warning\n(3, 1): Can't convert first\nsecond(string) to int\n"
    assert units.last_line(said) == f"(3, 1): Can't convert {MASK}(string) to int"


@pytest.mark.parametrize("line", [
    f'level=info msg="Start cri plugin with config {GO_DUMP}"',
    'level=info msg="starting cri plugin" config="{\\"registry\\":{\\"password\\":\\"abc\\"}}"',
])
def test_the_journal_has_no_whole_configuration(tmp_path, line):
    program = tmp_path / "usr/bin/journalctl"
    program.parent.mkdir(parents=True)
    program.write_text("")
    program.chmod(0o755)
    said = f"first\n{line}\n(3, 3): Can't convert {LOGIN}(string) to config.AuthConfig\n"
    shown = units.journal(lambda argv, _timeout: Result(argv, 0, said, "", False, 0.1), str(tmp_path), 5, {"loaded": True, "name": "x"}, 0)
    assert shown == f"first\n(3, 3): Can't convert {MASK}(string) to config.AuthConfig"


def test_a_word_without_an_end_costs_no_time_and_shows_nothing():
    def seconds(word):
        started = time.process_time()
        assert mask_text(f"it says {word} and stays") == f"it says {MASK} and stays"
        return time.process_time() - started

    # A ratio: ten times as long may not take a hundred times as long.
    short, longer = "auth-" * 20_000, "auth-" * 200_000
    assert seconds(longer) < 40 * max(seconds(short), 0.001)
