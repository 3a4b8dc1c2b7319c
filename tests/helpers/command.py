"""`mge-quantize` in this process."""

from click.testing import CliRunner

from megengine.cli.app import group


def call(*words, code=0):
    """What the command prints, or its one line of error where it is expected to exit with `code`."""
    done = CliRunner().invoke(group, [str(word) for word in words])
    assert done.exit_code == code, (words, done.output, done.exception)
    if not code:
        return done.stdout
    assert code != 1 or len(done.stderr.strip().splitlines()) == 1, done.stderr
    return done.stderr
