"""Times the way from nothing to a first prediction, with Sluice and with other servers."""
