"""What differs between two graphs, or two traced modules."""
