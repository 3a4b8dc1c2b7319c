"""Op classes and `apply` give what MegEngine 1.13.0 gave (tests/recording/inside_cases.py, op_classes.py)."""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false

import json
import pickle
from pathlib import Path

import inside_cases
import numpy as np
import packed
import pytest
from record import answer

import megengine as mge
import megengine.autodiff
import megengine.functional as F
from megengine.compat.opdef import CLASSES, Choice, apply
from megengine.core.errors import ArgumentError, MegEngineError, OptionError, ShapeError
from megengine.core.ops import builtin as B

DATA = Path(__file__).parents[1] / "data" / "recorded"
RECORDED = packed.load(DATA / "inside.npz")
KINDS = json.loads((DATA / "op_classes.json").read_text())
FAILING_THERE = {key.removesuffix(" -> error") for key in RECORDED if key.endswith(" -> error")}
WITHOUT_GRADIENT = {key.removesuffix(" -> no gradient") for key in RECORDED if key.endswith(" -> no gradient")}
# Where MegEngine is wrong, or gives more than there is here: name -> reason.
DIFFERENT = {
    "DeformablePSROIPooling": "the second result there, how many samples each value is of, is not given",
    "ROIAlign": "the second result there, where each largest value came from, is not given",
    "ROIPooling": "the second result there, where each largest value came from, is not given",
    "RemoveAxis": "there the gradient has another shape than the input",
}


def check(name):
    case = inside_cases.INSIDE[name]
    found = answer(mge, F, megengine.autodiff, case._replace(grad=case.grad and name not in WITHOUT_GRADIENT))
    wanted = {k: v for k, v in RECORDED.items() if k.startswith((f"{name} -> out", f"{name} -> grad"))}
    assert wanted
    for key, want in wanted.items():
        got = found.get(key, np.zeros_like(want)) if "grad" in key else found[key]
        assert got.shape == want.shape, key
        assert got.dtype == want.dtype, key
        tolerance = 2e-3 if want.dtype == np.float16 else 2e-5
        scale = max(1.0, float(np.abs(want.astype(np.float64)[np.isfinite(want)]).max(initial=0)))
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * scale, err_msg=key)


@pytest.mark.parametrize("name", sorted(set(inside_cases.INSIDE) - FAILING_THERE - set(DIFFERENT)))
def test_agrees_with_the_recording(name):
    check(name)


@pytest.mark.parametrize("name", sorted(DIFFERENT))
def test_differences_are_still_there(name):
    """A difference that vanished must leave the list."""
    with pytest.raises((AssertionError, KeyError)):
        check(name)


def test_every_case_is_recorded():
    assert {key.split(" -> ")[0] for key in RECORDED} == set(inside_cases.INSIDE)


@pytest.mark.parametrize("name", KINDS)
def test_classes_take_the_same_options(name):
    """Names in order, defaults, choices, and the text that graphs print."""
    kind = getattr(B, name)
    state = kind().__getstate__()
    assert list(state) == [option for option, _ in KINDS[name]["options"]]
    for option, there in KINDS[name]["options"]:
        here = state[option][0] if isinstance(state[option], tuple) else state[option]
        if option not in ("comp_node", "cn", "output_dtypes"):
            same = pytest.approx(there, rel=1e-6) if isinstance(there, float) else there
            assert (str(here) if option == "dtype" and here is not None else here) == same, option
    for choices, words in KINDS[name]["choices"].items():
        assert set(words) >= set(getattr(kind, choices).__members__) or choices == "Format", choices
        assert set(getattr(kind, choices).__members__) >= {getattr(v, "name", v) for v in _used(kind, choices)}
    assert repr(kind()) == KINDS[name]["text"]


def _used(kind, choices):
    return [v for v in vars(kind()).values() if isinstance(v, Choice) and isinstance(v, getattr(kind, choices))]


def test_all_classes_are_there():
    assert set(KINDS) == set(CLASSES) - {"PyOpBase"}


def test_ops_are_values():
    """Equal options make equal ops, which can be keys and can be pickled; words are read in any case of letters."""
    a, b = B.Convolution(pad_h=1), B.Convolution(pad_h=1)
    assert a == b != B.Convolution(pad_h=2)
    assert {a: 1}[b] == 1
    assert pickle.loads(pickle.dumps(a)) == a
    op = B.Elemwise("add")
    assert op.mode == B.Elemwise.Mode.ADD == "ADD"
    op.mode = "MUL"
    assert (repr(op), repr(op.mode), op.scope) == ("MUL", "Elemwise.Mode.MUL", "")
    assert B.Reduce(mode=B.Reduce.Mode.MAX).mode.value == "MAX"


REFUSED = [
    (lambda: B.Elemwise("EPX"), r"Elemwise: mode is 'EPX'; expected one of .*did you mean 'EXP'"),
    (lambda: B.Convolution(pad_h="1"), "Convolution: pad_h is '1'; expected an integer"),
    (lambda: B.BatchNorm(epsilon="x"), "BatchNorm: epsilon is 'x'; expected a float"),
    (lambda: B.AddAxis(axis=1), "AddAxis: axis is 1; expected a list"),
    (lambda: setattr(B.Argmax(), "axes", 1), "Argmax: no option 'axes'; did you mean 'axis'"),
    (lambda: apply("ADD", mge.tensor(1.0)), "apply: op is 'ADD'; expected an op such as"),
    (lambda: apply(B.Elemwise("ADD"), mge.tensor(1.0)), "missing a required argument: 'y'"),
    (lambda: apply(B.Elemwise("FUSE_ADD_RELU"), mge.tensor(1.0)), "got 1 tensor, which it does not take"),
    (lambda: apply(B.Argmax()), r"Argmax: got 0 tensors; expected x"),
    (lambda: apply(B.Reduce(), *[mge.tensor(1.0)] * 3), r"Reduce: got 3 tensors; expected x, \[shape\]"),
    (lambda: apply(B.Reduce(axis=1), mge.tensor([[1.0]]), mge.tensor([1])), "Reduce: got an axis and the shape"),
    (lambda: apply(B.Reduce(), mge.tensor([[1.0, 2.0]]), mge.tensor([1, 3])), "cannot be reduced to"),
    (lambda: apply(B.Reshape(), mge.tensor([1.0])), "Reshape: got no shape; expected a second tensor, or shape="),
    (lambda: apply(B.Reshape(), mge.tensor([1.0]), mge.tensor([1.0])), "expected a flat tensor of integers"),
    (lambda: apply(B.Split(axis=0), mge.tensor([1.0, 2.0]), mge.tensor(1)), "Split: lengths sum to 1; expected 2"),
    (
        lambda: apply(B.Subtensor(items=[(0, True, False, False, False)]), mge.tensor([1.0])),
        "items name more positions",
    ),
    (lambda: apply(B.Subtensor(), mge.tensor([1.0]), mge.tensor(1)), "got 1 position; items name fewer"),
    (lambda: apply(B.Subtensor(items=[(2, *[False] * 4)]), mge.tensor([1.0])), "axis 2 of a tensor with 1 axis"),
    (lambda: apply(B.Elemwise("RMULH"), mge.tensor(1.0), mge.tensor(1.0)), "RMULH: got float32; expected int8"),
    (lambda: apply(B.AssertEqual(), mge.tensor([1.0]), mge.tensor([2.0])), "values differ by 0.5; expected at most"),
    (lambda: apply(B.AssertEqual(), mge.tensor([1.0]), mge.tensor([1.0, 2])), r"shapes are \(1,\) and \(2,\)"),
    (lambda: apply(B.PixelShuffleBackward(factor=2), F.ones((1, 1, 3, 2))), "factor 2 does not divide height 3"),
    (lambda: apply(B.Pooling(format="NCHW44"), F.ones((1, 1, 2, 2))), "format is NCHW44; expected NCHW"),
    (lambda: apply(B.Convolution(mode="CONVOLUTION"), *[F.ones((1, 1, 2, 2))] * 2), "a cross-correlation too"),
    (lambda: apply(B.ElemwiseMultiType("ROUND_SHR_SATURATE_IXxI8xI8"), mge.tensor(1)), "is of integer hardware"),
    (lambda: apply(B.Resize(imode="AREA"), F.ones((1, 2, 2, 1)), mge.tensor([2, 2])), "Resize: imode is AREA"),
    (lambda: apply(B.Resize3D(imode="CUBIC", format="NCDHW"), F.ones((1, 1, 2, 2, 2)), mge.tensor([2] * 3)), "CUBIC"),
    (lambda: apply(B.ROIAlign(offset=0.3), F.ones((1, 1, 2, 2)), F.ones((1, 5))), "offset is 0.3; expected 0 or 0.5"),
    (lambda: apply(B.BatchNorm(), *[F.ones((1, 2, 1, 1))] * 3), "expected DIM_1C11"),
    (
        lambda: apply(B.BatchNorm(param_dim="DIM_1C11", fwd_mode="INFERENCE"), *[F.ones((1, 2, 1, 1))] * 3),
        "INFERENCE needs five tensors",
    ),
    (lambda: B.PyOpBase().run(), "write a megengine.autodiff.Function"),
    *((lambda k=k: apply(getattr(B, k)(), mge.tensor(1.0)), f"{k}: .*megengine.module.{k}") for k in ("RNN", "LSTM")),
    (lambda: apply(B.MultiHeadAttn(), mge.tensor(1.0)), "use megengine.functional.nn.multi_head_attention"),
    (lambda: apply(B.BatchNormBackward(), mge.tensor(1.0)), "gradients of batch_norm come from"),
    (lambda: apply(B.WarpPerspectiveBackwardMat(), mge.tensor(1.0)), "gradients of warp_perspective come from"),
    (lambda: apply(B.RegionRestrictedConvolutionBackwardData(), mge.tensor(1.0)), "comes from GradManager.backward"),
    (lambda: apply(B.TensorRTRuntime(), mge.tensor(1.0)), "convert the original model to ONNX"),
    (lambda: apply(B.CollectiveComm(), mge.tensor(1.0)), "training runs in one process"),
]


@pytest.mark.parametrize(("call", "text"), REFUSED, ids=[text[:40] for _, text in REFUSED])
def test_wrong_options_and_tensors_say_what_is_expected(call, text):
    with pytest.raises(MegEngineError, match=text) as caught:
        call()
    assert isinstance(caught.value, (OptionError, ArgumentError, ShapeError, RuntimeError))


def test_random_ops_draw_from_their_handle():
    from megengine.core._imperative_rt.ops import delete_rng_handle, new_rng_handle

    handle = new_rng_handle("xpux", 3)
    shape = mge.tensor([4], dtype="int32")
    drawn = [apply(B.UniformRNG(handle=handle), shape)[0].numpy() for _ in range(2)]
    assert not np.array_equal(*drawn)
    again = [apply(B.UniformRNG(seed=3), shape)[0].numpy() for _ in range(2)]
    np.testing.assert_array_equal(again[0], again[1])
    np.testing.assert_array_equal(again[0], drawn[0])
    delete_rng_handle(handle)
    x = F.arange(12).reshape(6, 2)
    rows, order = apply(B.ShuffleRNG(seed=1), x)
    np.testing.assert_array_equal(rows.numpy(), x.numpy()[order.numpy()])
    assert sorted(apply(B.PermutationRNG(seed=1), mge.tensor(5))[0].tolist()) == list(range(5))
    ones = F.full((3,), 2.0)
    for op, count in ((B.GammaRNG(seed=1), 2), (B.BetaRNG(seed=1), 2), (B.PoissonRNG(seed=1), 1)):
        assert apply(op, *[ones] * count)[0].shape == (3,)
    assert apply(B.GaussianRNG(mean=2.0, std=0.0), shape)[0].tolist() == [2.0] * 4
    y, mask = apply(B.Dropout(drop_prob=0.5), F.ones(1000))
    np.testing.assert_array_equal(y.numpy(), mask.numpy())
    assert set(np.unique(mask.numpy())) == {0.0, 2.0}
