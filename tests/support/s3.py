"""An S3 server of its own: moto's, in a process, with a bucket that boto3 fills."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

BUCKET = "bucket"

_SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
host, port = server.get_host_and_port()
print(f"http://{host}:{port}", flush=True)
sys.stdin.read()
"""


@contextmanager
def s3_server(patch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of a new server with an empty `BUCKET`; the environment leads s3fs of all processes to the server."""
    import boto3

    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().decode().strip()
        assert url, "the S3 server did not start"
        for name, value in {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }.items():
            patch.setenv(name, value)
        client = boto3.client("s3", endpoint_url=url)
        client.create_bucket(Bucket=BUCKET)
        try:
            yield client
        finally:
            client.close()
    finally:
        process.communicate()


def upload(client: Any, directory: Path, prefix: str = "") -> None:
    """Put all files of a directory into the bucket."""
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            client.put_object(Bucket=BUCKET, Key=f"{prefix}{path.relative_to(directory)}", Body=path.read_bytes())
