"""Files of traced modules: the native format and MegEngine's `.tm`."""
