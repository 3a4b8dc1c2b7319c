"""The graph core: nodes, expressions, order, names, primitive changes and their history, queries and checks."""
