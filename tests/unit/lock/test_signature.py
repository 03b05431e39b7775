# SPDX-License-Identifier: GPL-3.0-or-later
"""Signatures beside a package, against a throw-away authority and the real openssl."""

import calendar
import sys

import authority
import packages
import pytest

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._packages import _signature
from ansible_collections.npu.fleet.plugins.module_utils._packages._signature import Trust

NAME = packages.DRIVER


@pytest.fixture
def vendor(tmp_path):
    return authority.Authority(tmp_path / "ca")


@pytest.fixture
def package(tmp_path):
    packages.write(tmp_path / NAME, packages.DRIVER_FILES)
    return tmp_path / NAME


def check(package, crl=None, suffix=".p7s", **trust):
    proof = str(package) + suffix
    return _signature.check(NAME, str(package), proof, crl and str(crl), trust=Trust(**{key: str(value) for key, value in trust.items()}))


def refused(*args, **kwargs):
    with pytest.raises(FleetError) as caught:
        check(*args, **kwargs)
    return caught.value


@pytest.mark.parametrize("form", ["DER", "PEM"])
@pytest.mark.parametrize("suffix", [".p7s", ".cms"])
def test_good(package, vendor, form, suffix):
    vendor.sign(package, suffix, form)
    answer = check(package, suffix=suffix, ca=vendor.ca)
    assert (answer["verified"], answer["file"], answer["crl"]) == (True, NAME + suffix, None)
    assert "Test Signer" in answer["signer"]


@pytest.mark.parametrize("form", ["DER", "PEM"])
def test_the_age_of_the_revocation_list_is_told(package, vendor, tmp_path, form):
    vendor.sign(package)
    vendor.crl(tmp_path / "x.crl", form, lastupdate="20260105093443Z", nextupdate="20990101000000Z")
    now = calendar.timegm((2026, 2, 4, 12, 0, 0))
    answer = _signature.check(NAME, str(package), f"{package}.p7s", str(tmp_path / "x.crl"), trust=Trust(str(vendor.ca)), now=now)
    assert (answer["verified"], answer["crl"], answer["crl_issued"], answer["crl_age_days"]) == (True, "x.crl", "2026-01-05", 30)


def test_a_list_for_all_packages(package, vendor, tmp_path):
    vendor.sign(package)
    vendor.crl(tmp_path / "all.crl")
    assert check(package, ca=vendor.ca)["crl"] is None
    trust = Trust(str(vendor.ca), str(tmp_path / "all.crl"))
    assert _signature.check(NAME, str(package), f"{package}.p7s", None, trust=trust)["crl"] == "all.crl"


def test_nothing_is_checked_without_an_authority(package, vendor):
    vendor.sign(package)
    answer = check(package)
    assert (answer["verified"], answer["file"]) == (False, NAME + ".p7s")


def test_a_changed_package(package, vendor):
    vendor.sign(package)
    data = bytearray(package.read_bytes())
    data[-1] ^= 1
    package.write_bytes(bytes(data))
    error = refused(package, ca=vendor.ca)
    assert (error.code, NAME in str(error)) == ("signature_invalid", True)
    assert "openssl" in error.hint


def test_a_signature_by_somebody_else(package, vendor, tmp_path):
    other = authority.Authority(tmp_path / "other", "Other Authority")
    other.sign(package)
    error = refused(package, ca=vendor.ca)
    assert error.code == "signature_invalid"
    assert "issuer certificate" in error.observed


def test_the_system_s_authorities_are_not_asked(package, vendor, tmp_path, monkeypatch):
    """What openssl trusts by default would make a signature by anybody good."""
    other = authority.Authority(tmp_path / "other", "Other Authority")
    other.sign(package)
    monkeypatch.setenv("SSL_CERT_FILE", str(other.ca))
    (tmp_path / "hashed").mkdir()
    (tmp_path / "hashed" / "ca.pem").write_bytes(other.ca.read_bytes())
    other.run("rehash", tmp_path / "hashed")
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "hashed"))
    assert refused(package, ca=vendor.ca).code == "signature_invalid"


def test_a_revoked_signer(package, vendor, tmp_path):
    vendor.sign(package)
    vendor.revoke()
    vendor.crl(tmp_path / "x.crl")
    error = refused(package, tmp_path / "x.crl", ca=vendor.ca)
    assert "revoked" in error.observed


def test_a_revocation_list_that_is_too_old(package, vendor, tmp_path):
    vendor.sign(package)
    vendor.crl(tmp_path / "x.crl", lastupdate="20200105093443Z", nextupdate="20200205093443Z")
    error = refused(package, tmp_path / "x.crl", ca=vendor.ca)
    assert "expired" in error.observed


@pytest.mark.parametrize("text", [b"", b"\x30\x82", b"<html>"])
def test_no_signature_at_all(package, vendor, text):
    package.with_name(NAME + ".p7s").write_bytes(text)
    assert refused(package, ca=vendor.ca).code == "signature_invalid"


def test_no_revocation_list_at_all(package, vendor, tmp_path):
    vendor.sign(package)
    (tmp_path / "x.crl").write_text("nothing")
    assert refused(package, tmp_path / "x.crl", ca=vendor.ca).code == "crl_invalid"


@pytest.mark.parametrize("content", [None, b"\x30\x82"])
def test_an_authority_that_can_not_be_used(package, vendor, tmp_path, content):
    vendor.sign(package)
    if content:
        (tmp_path / "ca.der").write_bytes(content)
    assert refused(package, ca=tmp_path / "ca.der").code == "signature_trust"


def test_no_openssl(package, vendor):
    vendor.sign(package)
    error = refused(package, ca=vendor.ca, openssl="/nowhere/openssl")
    assert error.code == "command_missing"


def test_openssl_before_3(package, vendor, tmp_path):
    """1.1.1 does not know -no-CAstore, and has no store that would have to be switched off."""
    old = tmp_path / "openssl"
    old.write_text(f"#!{sys.executable}\nimport os, sys\n"
                   "if sys.argv[1] == 'version': print('OpenSSL 1.1.1k  25 Mar 2021'); sys.exit(0)\n"
                   "if '-no-CAstore' in sys.argv: sys.exit('cms: Unrecognized flag no-CAstore')\n"
                   "os.execvp('/usr/bin/openssl', sys.argv)\n")
    old.chmod(0o755)
    vendor.sign(package)
    assert check(package, ca=vendor.ca, openssl=old)["verified"]


@pytest.mark.parametrize(("names", "expected"), [
    ([], (None, None)),
    ([NAME + ".p7s"], (NAME + ".p7s", None)),
    ([NAME[:-4] + ".cms", NAME[:-4] + ".crl"], (NAME[:-4] + ".cms", NAME[:-4] + ".crl")),
    ([NAME + ".cms", "ascendsip.crl"], (NAME + ".cms", "ascendsip.crl")),
    ([NAME + ".cms", "ascendsip.crl", NAME + ".crl"], (NAME + ".cms", NAME + ".crl")),
    ([NAME + ".cms", "ascendsip.crl", "ascendsip_g2.crl"], (NAME + ".cms", None)),
    (["other.run.p7s"], (None, None)),
])
def test_what_lies_beside_a_package(names, expected):
    assert _signature.companions(NAME, names) == expected
