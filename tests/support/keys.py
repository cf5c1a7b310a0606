"""Certificates for tests of TLS: an authority (ca.pem), one of it for a server and one for a client."""

import subprocess
from pathlib import Path


def openssl(*words: str, where: Path) -> None:
    subprocess.run(["openssl", *words], cwd=where, check=True, capture_output=True)


def make_keys(folder: Path) -> Path:
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    authority = ("-addext", "keyUsage=critical,keyCertSign,digitalSignature")
    openssl(
        "req",
        "-x509",
        *key,
        "-keyout",
        "ca.key",
        "-out",
        "ca.pem",
        "-subj",
        "/CN=ca",
        *authority,
        where=folder,
    )
    for name in ("server", "client"):
        extension = ("-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=CA:FALSE")
        issuer = ("-CA", "ca.pem", "-CAkey", "ca.key")
        out = ("-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}")
        openssl("req", "-x509", *key, *issuer, *out, *extension, where=folder)
    return folder
