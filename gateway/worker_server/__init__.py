"""`sluice worker`: the worker of one partition as a server of its own."""
