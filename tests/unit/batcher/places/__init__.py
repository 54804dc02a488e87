"""Tests of the places of requests in planned batches."""
