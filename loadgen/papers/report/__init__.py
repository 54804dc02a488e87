"""Reports of experiments: as text, as JSON, as a page and as plots."""
