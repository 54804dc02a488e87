"""Routes of the application: one file for each kind of thing that they are about."""
