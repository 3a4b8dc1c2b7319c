"""Edits of graphs: checked when they are made, recorded, undone and replayed."""
