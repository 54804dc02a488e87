"""Open-loop load generation in the manner of MLPerf LoadGen, against live servers and the simulator."""
