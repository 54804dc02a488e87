"""MLPerf's LoadGen: its configuration files, itself as the client, logs in its format, and the compliance tests."""
