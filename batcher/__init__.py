"""WHEN and HOW BIG: the pure scheduling core, its batch policies, its journal and its simulator driver."""
