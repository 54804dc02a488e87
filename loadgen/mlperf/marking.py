"""The mark of logs that have the format of LoadGen's and were not written by it."""

NOT_A_RESULT = "not an MLPerf result; written by Sluice's load generator in the format of MLPerf LoadGen"
NOT_A_RESULT_KEY = "not_an_mlperf_result"
