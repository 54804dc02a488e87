"""The ids of requests whose clients give none."""


def server_id(request: int) -> str:
    """The id that the server gives to the request of this number."""
    return f"sluice-{request}"
