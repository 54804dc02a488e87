"""The command line `loadgen`: one file a command, each with its options and its exit status."""
