"""The digits demo: a small labelled data set, models trained on it in a second, a cascade and an ensemble."""
