"""The live driver of the scheduler: it feeds events in, carries out decisions, and chooses nothing itself."""
