"""Workers that Ray places: an actor for each, leases for several gateways, and the process that talks to Ray."""
