"""Options that several commands have."""

from typing import Any

import click

from megengine.cli.choices import FILE
from megengine.cli.images import PRESETS
from megengine.core.errors import DeviceError
from megengine.device import normalize


def data_option(*, required: bool) -> Any:
    """`--data`."""
    return click.option(
        "--data",
        type=FILE,
        required=required,
        help="A folder of pictures, a .npy or .npz file (samples along the first axis), or module.py:function.",
    )


def data_options(*, required: bool) -> Any:
    """`--data`, how its pictures are prepared, and how many samples are read."""

    def added(function: Any) -> Any:
        for option in (samples_option, preprocess_option, data_option(required=required)):
            function = option(function)
        return function

    return added


preprocess_option = click.option(
    "--preprocess",
    type=FILE,
    default=None,
    metavar="RECIPE",
    help=f"For pictures: a preset ({', '.join(PRESETS)}), a .json file, or preset,key=value,... "
    "Needed unless the model stores one.",
)
samples_option = click.option(
    "--samples", type=click.IntRange(1), default=None, help="Use at most this many batches, the first."
)
held_out_option = click.option(
    "--held-out",
    type=click.IntRange(0),
    default=16,
    show_default=True,
    help="One of ten samples (of few a quarter, up to 8), at most this many, scores the result and does not calibrate; "
    "digests choose which.",
)


def checked_device(_: click.Context, __: click.Parameter, name: str | None) -> str | None:
    """The name of a device, if it can be used. Raises click.BadParameter."""
    try:
        return name if name is None else normalize(name)
    except DeviceError as exc:
        raise click.BadParameter(str(exc)) from exc


workers_option = click.option(
    "--workers", type=click.IntRange(1), default=1, show_default=True, help="Processes that calibrate."
)

device_option = click.option(
    "--device", callback=checked_device, metavar="NAME", help='Where the network runs: "gpu0". By default here.'
)


def layers_options(function: Any) -> Any:
    """`--rule`, `--exclude` and `--include`: which layers are treated otherwise."""
    for option in reversed(_LAYERS):
        function = option(function)
    return function


_LAYERS = (
    click.option(
        "--rule",
        "rules",
        multiple=True,
        metavar="LAYERS=WORD[,WORD]",
        help="Other integers for some layers: a --precision, per_channel, per_tensor, group:N. LAYERS: a module path, "
        "a node, op:NAME, a glob, re:PATTERN or FIRST..LAST; repeat, the last one counts.",
    ),
    click.option("--exclude", multiple=True, help="Leave in float: LAYERS as for --rule; repeat."),
    click.option("--include", multiple=True, help="Leave all other layers with weights in float: LAYERS; repeat."),
)
