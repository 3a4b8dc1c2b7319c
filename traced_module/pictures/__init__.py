"""Graphs as pictures, pages and tables."""
