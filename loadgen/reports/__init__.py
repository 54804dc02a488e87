"""Reports of runs and searches: text, JSON, Markdown, and a page of HTML."""
