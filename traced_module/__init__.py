"""TracedModule: a model as an editable graph."""
