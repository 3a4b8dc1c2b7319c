"""The mge-quantize command."""

if __name__ != "megengine.cli":
    raise ImportError("import megengine.cli, not cli: a second copy has classes of its own")


def main() -> None:
    """Entry point of `mge-quantize`; what a command needs is imported when it runs."""
    from megengine._early import interrupts

    interrupts.hold()  # until the command runs
    _open_closed_files()
    from megengine.cli.app import run

    run()


def _open_closed_files() -> None:
    """Open the null device for the numbers 0 to 2 that the caller closed: other files would get them."""
    import os
    import sys

    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(handle, True)
    os.close(handle)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  (as long as the process)
