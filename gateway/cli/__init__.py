"""The command line: argument parsers and text output."""
