"""Values that every layer shares: dtypes, specs, errors, pytrees, hooks."""
