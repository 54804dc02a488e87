"""Virtual-time models of the machines that the experiments run on."""
