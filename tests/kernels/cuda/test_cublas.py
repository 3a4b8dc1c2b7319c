"""cuBLAS's C interface, without the library: statuses become errors, and a missing library is named."""

import pytest

from megengine.core.errors import DeviceError
from megengine.kernels.cuda import cublas


class Function:
    """A function of the library that gives a status."""

    def __init__(self, status):
        self.status, self.argtypes, self.calls = status, (), []

    def __call__(self, *arguments):
        self.calls.append(arguments)
        return self.status


class Library:
    def __init__(self, status=0):
        self.cublasCreate_v2, self.cublasSetStream_v2, self.cublasSetMathMode, self.cublasGemmStridedBatchedEx = (
            Function(status) for _ in range(4)
        )


CALLS = {
    "cublasCreate": lambda blas: blas.create(),
    "cublasSetStream": lambda blas: blas.set_stream(1, 2),
    "cublasSetMathMode": lambda blas: blas.set_math_mode(1, 2),
    "cublasGemmStridedBatchedEx": lambda blas: blas.gemm(*range(23)),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_status_is_an_error_that_names_the_call(name):
    CALLS[name](cublas.Cublas(Library()))
    with pytest.raises(DeviceError, match=f"cuBLAS: {name} failed with status 13"):
        CALLS[name](cublas.Cublas(Library(13)))


def test_arguments_have_the_types_of_the_interface():
    library = Library()
    cublas.Cublas(library).gemm(*range(23))
    assert library.cublasGemmStridedBatchedEx.calls == [tuple(range(23))]
    assert len(library.cublasGemmStridedBatchedEx.argtypes) == 23


def test_a_library_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(cublas, "_NAMES", ("no such library",))
    with pytest.raises(DeviceError, match="cuBLAS cannot be loaded: no such library"):
        cublas.load()
