"""Settings of the scheduler as users write them, in milliseconds and megabytes, and the spec made from them."""
