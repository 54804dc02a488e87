"""Tables, plots and reports as plain text for terminals."""
