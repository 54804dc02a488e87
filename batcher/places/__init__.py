"""Places: every admitted request has one in a planned batch for each of its stages, at the price that it is worth."""
