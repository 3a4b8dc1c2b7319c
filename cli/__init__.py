"""The mge-quantize command."""
