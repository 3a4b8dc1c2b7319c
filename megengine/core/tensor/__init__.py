"""Where MegEngine's code finds its dtypes."""
