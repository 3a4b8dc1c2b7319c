"""The mge-quantize command."""

if __name__ != "megengine.cli":
    raise ImportError("import megengine.cli, not cli: a second copy has classes of its own")


def main() -> None:
    """Entry point of `mge-quantize`; what a command needs is imported when it runs."""
    import signal

    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # see megengine._early
            signal.signal(signal.SIGINT, signal.default_int_handler)
        from megengine.cli.app import run
    except KeyboardInterrupt:  # nothing has begun
        raise SystemExit(130) from None
    run()
