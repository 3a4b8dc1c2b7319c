"""Every program that the families can launch compiles for GPUs, within registers, and rounds as its file says."""

import re
from pathlib import Path

import pytest
from cuda_programs import Resources, compile_all, compiled, families, need_nvrtc, resources

from megengine.kernels.cuda.sources import FOLDER, Program

_CHUNK = 24  # programs of one test, so that processes share the work
# kernels whose arrays are indexed by numbers that the compiler does not know, so that they lie in memory
STACKS: dict[str, str] = {}
# files whose exact programs hold an fma that nobody wrote: CUDA's functions are made of them
FUNCTIONS: dict[str, str] = {
    "recurrent.cu": "exp of double; the state alone is rounded as integers are, by a division",
    "softmax.cu": "exp and log of double",
    "elementwise_floor_div.cu": "fmod",
    "elementwise_mod.cu": "fmod",
    "updates.cu": "pow of double",
}
INTEGER_EPILOGUE = re.compile(r'#include "integer\.cuh"')  # the steps that all integer kernels share


def _chunks():
    for name, programs in families().items():
        for at in range(0, len(programs), _CHUNK):
            yield pytest.param(programs[at : at + _CHUNK], id=f"{name}-{at}")


CHUNKS = list(_chunks())


def _faults(program: Program, ptx: str, log: str) -> list[str]:
    """What is wrong with a compiled program, in words."""
    found, faults = resources(log), []
    if not found:
        faults.append(f"no kernel in what ptxas says: {log[:300]}")
    for one in found:
        if one.spilled:
            faults.append(f"{one.kernel} spills {one.spilled} bytes of registers")
        if one.stack and f"{program.file}:{one.kernel}" not in STACKS:
            faults.append(f"{one.kernel} has a stack frame of {one.stack} bytes")
    integers = bool(INTEGER_EPILOGUE.search(program.source)) and program.file not in FUNCTIONS
    if (integers or (program.exact and program.file not in FUNCTIONS)) and (fused := _fused(ptx)):
        faults.append(f"joins products and sums {len(fused)} times: {fused[0]}")
    return faults


def _fused(ptx: str) -> list[str]:
    return re.findall(r"^\s*(?:@%\w+ )?fma\..*$", ptx, re.MULTILINE)


def _check(programs: list[Program], architectures: tuple[int, ...]) -> None:
    need_nvrtc()
    faults = {
        f"{p.file} {dict(p.macros)} sm_{a}": found
        for p, a, ptx, log in compile_all(programs, architectures)
        if (found := _faults(p, ptx, log))
    }
    assert not faults, "\n".join(f"{name}: {'; '.join(words)}" for name, words in faults.items())


@pytest.mark.parametrize("programs", CHUNKS)
def test_every_program_compiles_within_registers(programs):
    _check(programs, (90,))


@pytest.mark.parametrize("programs", CHUNKS)
def test_some_programs_compile_for_the_other_architectures(programs):
    """Of every family some, others for each: all for all would take a quarter of an hour."""
    for i, architecture in enumerate((75, 80, 86)):
        _check(programs[min(3 * i, len(programs) - 1) :: 9], (architecture,))


def test_every_source_file_is_declared_by_a_family():
    declared = {p.file for programs in families().values() for p in programs}
    assert {p.name for p in Path(FOLDER).glob("*.cu")} <= declared


def test_lists_of_exceptions_name_files_that_need_them():
    """An entry that no program needs any more is removed."""
    need_nvrtc()
    programs = [p for found in families().values() for p in found]
    files = {p.file for p in programs}
    assert set(FUNCTIONS) <= files
    for file in FUNCTIONS:
        some = (p for p in programs if p.file == file and p.exact)
        assert any(_fused(compiled(p, 90)[0]) for p in some), f"{file} has no fma in its exact programs"
    for entry in STACKS:
        file, kernel = entry.split(":")
        some = (r for p in programs if p.file == file for r in resources(compiled(p, 90)[1]))
        assert any(r.kernel == kernel and r.stack for r in some), f"{entry} has no stack frame"


_FUSED = "KERNEL(join, const float* x, float* y) { y[0] = x[0] * x[1] + x[2]; }"
_STACK = """KERNEL(indexed, const int* x, int* y, int n) {
    int kept[64];
    for (int i = 0; i < n; i++) kept[x[i]] = i;
    y[0] = kept[x[n]];
}"""


def test_faults_are_seen():
    """The checks find an fma, a stack frame and a program without kernels."""
    need_nvrtc()
    joined = Program("planted.cu", (), _FUSED, exact=False)
    assert _faults(joined, *compiled(joined, 90)) == []
    of_integers = Program("planted.cu", (), f'#include "integer.cuh"\n{_FUSED}', exact=False)
    assert re.search("joins products", _faults(of_integers, *compiled(joined, 90))[0])
    apart = Program("planted.cu", (), _FUSED)
    assert _faults(apart, *compiled(apart, 90)) == []
    framed = Program("planted.cu", (), _STACK)
    assert re.search("indexed has a stack frame of 256", _faults(framed, *compiled(framed, 90))[0])
    assert re.search("no kernel", _faults(apart, "", "")[0])


def test_words_of_ptxas_are_read():
    log = (
        "ptxas info    : Compiling entry function 'one' for 'sm_90'\nptxas info    : Function properties for one\n"
        "ptxas         .     8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n"
        "ptxas info    : Used 24 registers, used 1 barriers\n"
    )
    assert resources(log) == [Resources("one", 24, 8, 16)]
