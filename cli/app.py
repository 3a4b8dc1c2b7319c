"""The command group: common options, exit codes, and errors as one line.

Exit codes: 0 done, 1 the input or the result is bad, 2 wrong usage, 70 our bug, 130 interrupted. `diff` is like the
program of that name: 0 equal, 1 different, 2 trouble of any kind that is not a bug.
"""

import functools
import importlib
import json
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import click

from megengine._early import interrupts
from megengine.cli.output import Output, printable
from megengine.cli.recipes import in_options, recipe_option
from megengine.core.errors import MegEngineError, nearest

EXIT_BAD, EXIT_USAGE, EXIT_BUG, EXIT_INTERRUPTED = 1, 2, 70, 130
LONGEST_MESSAGE = 3000
INTERRUPTED = "interrupted; no unfinished file was left"

# name -> (module, attribute, one line): the module is imported when its command runs
COMMANDS = {
    "inspect": ("megengine.cli.inspecting", "inspect", "List a model's inputs, layers, sizes and operations."),
    "draw": ("megengine.cli.inspecting", "draw", "Draw a model's graph: page, SVG, PNG or DOT."),
    "lint": ("megengine.cli.comparing", "lint", "List what is wrong or suspicious in a model."),
    "diff": ("megengine.cli.comparing", "diff", "Tell what is different in a second model."),
    "edit": ("megengine.cli.editing", "edit", "Replay edits, run passes, rename and cut a model."),
    "calibrate": ("megengine.cli.calibrating", "calibrate", "Collect the statistics that ptq --statistics takes."),
    "ptq": ("megengine.cli.ptq", "ptq", "Quantize a float model with calibration data."),
    "search": ("megengine.cli.searching", "search", "Find bits for each layer under budgets."),
    "qat": ("megengine.cli.qat", "qat", "Train a network with the values of its integer network."),
    "analyze": ("megengine.cli.analyzing", "analyze", "Tell where a quantized model loses what, why, and what helps."),
    "evaluate": ("megengine.cli.evaluating", "evaluate", "Score models side by side on labelled data."),
    "compare": ("megengine.cli.pairing", "compare", "Run two models on the same data, value by value."),
    "convert": ("megengine.cli.converting", "convert", "Write a float model in bfloat16 or float16, and compare."),
    "export": ("megengine.cli.exporting", "export", "Write a model in another format: ONNX, .mgt, .tm or Python."),
    "verify": ("megengine.cli.verifying", "verify", "Check that specification, integer run and plan agree."),
    "report": ("megengine.cli.reporting", "report", "Write the page of a quantized model that is there already."),
    "replay": ("megengine.cli.replaying", "replay", "Repeat the making of a quantized model to the same bytes."),
    "bench": ("megengine.cli.benching", "bench", "Time models' compiled plans side by side."),
    "demo": ("megengine.cli.demo", "demo", "Quantize three published networks and report."),
}
HOLDER = "megengine.holder"  # in the context's meta: number -> the sample that holds it, in words; "" if none does
_OUTSIDE = re.compile(r"\bindex (-?\d+) is out of range")
# names that other tools have for it
ELSEWHERE = {
    "quantize": "mge-quantize ptq MODEL --data DATA -o model.mgt",
    "train": "mge-quantize qat MODEL --data DATA -o model.mgt",
    "benchmark": "mge-quantize bench MODEL",
    "profile": "mge-quantize bench MODEL",
    "optimize": "mge-quantize edit MODEL --passes all -o model.mgt",
    "help": "mge-quantize --help",
    "info": "mge-quantize inspect MODEL",
    "visualize": "mge-quantize draw MODEL -o model.html",
}


class FailedError(MegEngineError):
    """A check that failed: the command did its work, and the answer is no."""


class LazyGroup(click.Group):
    """Commands that are imported when they are run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which they are used."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        return getattr(importlib.import_module(module), attribute)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in `--help`, without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, _, line) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Wrong usage is told as JSON too where the line asks for JSON."""
        words = [*ctx._protected_args, *ctx.args]
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            if "--json" in words:
                with suppress(OSError):
                    _print_json(error, error.format_message())
            raise

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """The message of an unknown name contains the nearest one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = nearest(args[0], [*COMMANDS, *ELSEWHERE])
            here = next((line for name, line in ELSEWHERE.items() if near.endswith(f"{name!r}?")), "")
            instead = f"; here it is `{here}`" if here else near
            error.message = error.message.rstrip(".") + instead
            raise


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="megengine")
def group() -> None:
    """Turn a float network into exact int8, and check, time and draw it."""
    # of damaged notes of a camera and the like: once for the process, since filters are no thread's own
    warnings.filterwarnings("ignore", module=r"PIL\.")


def examples(*lines: str) -> str:
    """The last part of a command's help; the first character keeps the line breaks."""
    return "\b\nExamples:\n" + "\n".join(f"  mge-quantize {line}" for line in lines)


def common(function: Callable[..., None], *, bad: int = EXIT_BAD, recipe: bool = True) -> Callable[..., None]:
    """`--json`, `--debug` and `--recipe`, and the errors of a command as one line with an exit code: `bad` for bad
    input. Where the order of options counts, there is no `recipe`.
    """

    @click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout, all else on stderr.")
    @click.option("--debug", is_flag=True, help="Show the traceback of an error.")
    @functools.wraps(function)
    def call(*, as_json: bool, debug: bool, **options: Any) -> None:
        try:
            function(out=Output(as_json=as_json), **options)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise  # click shows its own errors, and ends quietly when the reader of the output is gone
        except BaseException as error:
            _report(error, as_json=as_json, debug=debug)
            sys.exit(_code(error, bad))

    return recipe_option(call) if recipe else call


def _code(error: BaseException, bad: int) -> int:
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else EXIT_BAD
    if isinstance(error, (MegEngineError, MemoryError, OSError)):
        return bad
    return EXIT_INTERRUPTED if interrupts.raised else EXIT_BUG


def _report(error: BaseException, *, as_json: bool, debug: bool) -> None:
    if isinstance(error, SystemExit):
        return
    text = _message(error)
    if len(text) > LONGEST_MESSAGE:  # names in messages may come from files, and be of any length
        text = f"{text[: LONGEST_MESSAGE - 800]} … {text[-800:]}"
    with suppress(OSError):  # nobody reads it; the exit code remains
        if debug:
            traceback.print_exception(error)
        _tell(text)
    with suppress(OSError):
        if as_json:
            _print_json(error, text)


def _print_json(error: BaseException, text: str) -> None:
    print(json.dumps({"error": {"type": type(error).__name__, "message": text}}, indent=2), flush=True)


def _tell(text: str) -> None:
    print(f"mge-quantize: {printable(text)}", file=sys.stderr, flush=True)


def _message(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return " | ".join([INTERRUPTED, *getattr(error, "__notes__", [])])
    if isinstance(error, MemoryError):
        return "not enough memory for this model; free memory or take a smaller input shape"
    if isinstance(error, MegEngineError):
        notes, ctx = getattr(error, "__notes__", []), click.get_current_context(silent=True)
        text = str(error) if ctx is None else in_options(str(error), ctx.command)
        if ctx is not None and (found := _OUTSIDE.search(text)) and HOLDER in ctx.meta:
            with suppress(MegEngineError, OSError):
                notes = [note for note in [ctx.meta[HOLDER](int(found[1])), *notes] if note]
        return " | ".join([text, *notes])
    if isinstance(error, OSError):
        return f"{error.filename or 'a file'}: {error.strerror or error}"
    if interrupts.raised:  # it was turned into another error
        return INTERRUPTED
    return f"internal error: {type(error).__name__}: {error} (run again with --debug and report the traceback)"


def run() -> None:
    """Run the command line; SIGTERM and SIGHUP end as cleanly as Ctrl-C."""
    try:
        interrupts.begin()
        status = group.main(prog_name="mge-quantize", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        with suppress(OSError):
            error.show()
        status = error.exit_code
    except (click.Abort, KeyboardInterrupt):  # before or after a command's own work
        interrupts.end()
        with suppress(OSError):
            _tell(INTERRUPTED)
        status = EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of the output is gone
        status = EXIT_BAD
    except OSError as error:  # while the help or the rest of the output was written
        with suppress(OSError):
            _tell(f"standard output: cannot be written ({error.strerror or error})")
        status = EXIT_BAD
    interrupts.end()
    status = status if isinstance(status, int) else 0
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes the rest once more
        status = status or EXIT_BAD
    sys.exit(status)
