"""Certificates for tests of TLS."""

import subprocess
from pathlib import Path


def certificate(directory: Path, name: str, signer: str | None = None) -> None:
    """Make `name`.pem and `name`.key, signed by `signer` or by itself."""
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{name}.key"]
    about = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-days", "2"]
    signed = [] if signer is None else ["-CA", f"{signer}.pem", "-CAkey", f"{signer}.key"]
    command = ["openssl", "req", "-x509", *key, "-out", f"{name}.pem", *about, *signed]
    subprocess.run(command, cwd=directory, check=True, capture_output=True)
