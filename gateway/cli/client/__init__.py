"""Questions of commands to a running server, over HTTP."""
