# SPDX-License-Identifier: GPL-3.0-or-later
"""A throw-away authority that signs packages as the vendor does: detached CMS, and a revocation list."""

import subprocess

CONFIG = """
[ca]
default_ca = own
[own]
database = {folder}/index.txt
serial = {folder}/serial
crlnumber = {folder}/crlnumber
new_certs_dir = {folder}
certificate = {folder}/ca.pem
private_key = {folder}/ca.key
default_md = sha256
default_days = 30
default_crl_days = 30
policy = any
[any]
commonName = supplied
[leaf]
keyUsage = digitalSignature
extendedKeyUsage = codeSigning
"""


class Authority:
    def __init__(self, folder, name="Test Authority"):
        folder.mkdir(parents=True)
        self.folder, self.ca, self.config = folder, folder / "ca.pem", folder / "openssl.cnf"
        self.config.write_text(CONFIG.format(folder=folder))
        (folder / "index.txt").write_text("")
        (folder / "serial").write_text("01\n")
        (folder / "crlnumber").write_text("01\n")
        self.run("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30", "-subj", f"/CN={name}",
                 "-keyout", folder / "ca.key", "-out", self.ca)
        self.run("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=Test Signer",
                 "-keyout", folder / "signer.key", "-out", folder / "signer.csr")
        self.ca_run("-in", folder / "signer.csr", "-out", folder / "signer.pem", "-extensions", "leaf", "-batch", "-notext")

    def run(self, *words):
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, stdin=subprocess.DEVNULL)

    def ca_run(self, *words):
        self.run("ca", "-config", self.config, *words)

    def sign(self, path, suffix=".p7s", form="DER"):
        self.run("cms", "-sign", "-binary", "-in", path, "-signer", self.folder / "signer.pem", "-inkey", self.folder / "signer.key",
                 "-outform", form, "-out", f"{path}{suffix}")

    def crl(self, path, form="DER", **dates):
        words = [word for key, value in dates.items() for word in (f"-crl_{key}", value)]
        self.ca_run("-gencrl", "-out", self.folder / "list.pem", *words)
        self.run("crl", "-in", self.folder / "list.pem", "-outform", form, "-out", path)

    def revoke(self):
        self.ca_run("-revoke", self.folder / "signer.pem")
