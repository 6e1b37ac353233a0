"""Learners: one file each."""
