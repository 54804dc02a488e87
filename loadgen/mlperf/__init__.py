"""MLPerf: logs in the format of LoadGen's, and the compliance tests."""
