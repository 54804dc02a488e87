"""Tests of `loadgen.mlperf`."""
