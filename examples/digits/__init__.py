"""The digits demo: a small labelled data set, models trained from it in a second, a cascade and an ensemble."""
