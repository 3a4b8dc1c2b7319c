"""Parts of MegEngine that training scripts import and that are trivial in one process: they work, or say what to do."""

# pyright: reportArgumentType=false, reportOptionalMemberAccess=false

import subprocess
import sys
from itertools import chain

import numpy as np
import pytest

import megengine as mge
import megengine.distributed as dist
import megengine.functional as F
import megengine.module as M
from megengine import amp, jit
from megengine.autodiff import GradManager
from megengine.core.errors import DeviceError, MegEngineError, OptionError
from megengine.data import (
    Collator,
    DataLoader,
    Infinite,
    RandomSampler,
    ReplacementSampler,
    SequentialSampler,
    StreamSampler,
)
from megengine.data import transform as T
from megengine.data.dataset import ArrayDataset, ConcatDataset, StreamDataset, VisionDataset
from megengine.utils.module_stats import module_stats


class _Labels(T.VisionTransform):
    def _apply_image(self, image):
        return image + 1

    def _apply_image_category(self, category):
        return -category

    def _apply_info(self, info):
        return f"{info}!"

    def _apply_depth(self, depth):
        return depth * 2


@pytest.mark.parametrize(
    ("order", "parts", "expected"),
    [
        (("image", "image_category"), (3,), (-3,)),
        (("image", "category"), (3,), (3,)),
        (("image", "info"), ("a", "b"), ("a!", "b")),
        (("image",), ("a", 3), ("a", 3)),
        (("image", "depth", "image_info"), (1.5, {}), (3.0, {})),
    ],
)
def test_methods_of_a_transform_change_the_parts_of_their_names(order, parts, expected):
    """As MegEngine does: labels and parts of one's own that have a method; parts behind the order stay."""
    image = np.zeros((2, 2, 3), np.uint8)
    changed = _Labels(order).apply((image, *parts))
    assert changed[0].min() == 1 and changed[1:] == expected
    with pytest.raises(NotImplementedError, match="order names 'depth'; supported are .* method such as _apply_depth"):
        T.Pad(order=("image", "depth"))


def test_a_training_script_runs():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int32)
    loader = DataLoader(ArrayDataset(x, y), RandomSampler(ArrayDataset(x, y), batch_size=16, seed=1), num_workers=2)
    net, scaler = M.Linear(4, 2), amp.GradScaler(init_scale=128.0)
    gm = GradManager().attach(net.parameters(), callbacks=[dist.make_allreduce_cb("mean")])
    optimizer = mge.optimizer.SGD(net.parameters(), lr=0.5)
    dist.bcast_list_(net.parameters())

    @jit.trace(symbolic=True)
    def step(data, label):
        with gm, amp.autocast():
            loss = F.nn.cross_entropy(net(data), label)
            scaler.backward(gm, loss)
        optimizer.step().clear_grad()
        return loss

    losses = [step(mge.tensor(a), mge.tensor(b)).item() for _ in range(10) for a, b in loader]
    assert losses[-1] < 0.5 * losses[0]


def test_one_process():
    assert (dist.get_rank(), dist.get_world_size(), dist.is_distributed()) == (0, 1, False)
    x = mge.tensor([1.0])
    assert dist.functional.all_reduce_sum(x) is x
    dist.group_barrier()
    dist.init_process_group("localhost", 2333, 1, 0, 0)
    assert dist.launcher(lambda a: a + 1)(2) == 3
    assert dist.launcher(n_gpus=1)(lambda a: a + 1)(2) == 3
    assert dist.helper.get_device_count_by_fork("cpu") == 1
    with pytest.raises(DeviceError, match="n_gpus=4; there is one process|n_gpus=4; training runs"):
        dist.launcher(lambda: 0, n_gpus=4)()
    with pytest.raises(DeviceError, match="world_size=2"):
        dist.init_process_group(world_size=2)
    with pytest.raises(OptionError, match="did you mean 'mean'"):
        dist.make_allreduce_cb("meen")


def test_tensors_in_one_packed_tensor():
    a, b = mge.Parameter([[1.0, 2.0], [3.0, 4.0]]), mge.Parameter([5.0, 6.0, 7.0])
    shapes = [a.shape, b.shape]
    offsets = dist.helper.get_offsets(shapes)
    assert offsets == [0, 4, 4, 7]
    with GradManager().attach([a, b]) as gm:
        packed = dist.helper.param_pack_concat([a, b], mge.tensor(offsets), offsets)
        first, second = dist.helper.param_pack_split(packed * packed, offsets, shapes)
        gm.backward(first.sum() + 3 * second.sum())
    np.testing.assert_array_equal(packed.numpy(), np.arange(1, 8))
    np.testing.assert_array_equal(a.grad.numpy(), 2 * a.numpy())
    np.testing.assert_array_equal(b.grad.numpy(), 6 * b.numpy())


def test_scaled_gradients_are_those_of_the_loss():
    w = mge.Parameter([1.0, -2.0])
    gm, scaler = GradManager().attach([w]), amp.GradScaler(init_scale=1024.0, growth_interval=2)
    for expected in (1024.0, 2048.0):
        with gm:
            scaler.backward(gm, (w * w).sum())
        np.testing.assert_array_equal(w.grad.numpy(), [2, -4])
        assert scaler.scale_factor == expected
        w.grad = None
    with gm:
        scaler.backward(gm, (w / 0).sum())
    assert w.grad is None
    assert scaler.scale_factor == 1024.0
    other = amp.GradScaler()
    other.load_state_dict(scaler.state_dict())
    assert other.state_dict() == scaler.state_dict()
    with pytest.raises(OptionError, match="unknown state"):
        other.load_state_dict({"bananas": 1})
    with pytest.raises(OptionError, match="expected a scale above 0"):
        amp.GradScaler(init_scale=0)


def test_traced_functions_are_called():
    class Net:
        @jit.trace
        def double(self, x):
            """Twice."""
            return x * 2

    assert Net().double(3) == 6
    assert jit.exclude_from_trace(len)([1]) == jit.partial_trace(len)([1]) == 1
    assert jit.trace(len, capture_as_const=True).__name__ == "len"
    with pytest.raises(OptionError, match=r"trace_module.*plan\.compile"):
        jit.trace(len).dump("net.mge")
    with pytest.raises(OptionError, match="'symbolc'; did you mean 'symbolic'"):
        jit.trace(symbolc=True)(len)
    with pytest.raises(AttributeError, match="no longer needed"):
        jit.sideeffect


def test_orders():
    data = ArrayDataset(np.arange(10))
    assert list(SequentialSampler(data, 4)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert len(SequentialSampler(data, 4, drop_last=True)) == 2
    assert list(SequentialSampler(data, 2, indices=[5, 1, 2])) == [[5, 1], [2]]
    assert list(RandomSampler(data, 4, seed=5)) == [[9, 5, 2, 4], [7, 1, 0, 8], [6, 3]]  # as in MegEngine 1.13
    assert list(ReplacementSampler(data, 4, num_samples=7, seed=5)) == [[3, 6, 6, 0], [9, 8, 4]]
    first, second = (list(chain(*RandomSampler(data, 3, seed=s))) for s in (1, 1))
    assert first == second != list(range(10))
    assert sorted(first) == list(range(10))
    assert set(chain(*ReplacementSampler(data, 5, num_samples=50, weights=[0] * 9 + [1]))) == {9}
    endless = iter(Infinite(SequentialSampler(data, 10)))
    assert next(endless) == next(endless)
    with pytest.raises(OptionError, match="gives no batch"):
        next(iter(Infinite(SequentialSampler(ArrayDataset([])))))
    for wrong in (
        lambda: RandomSampler(3),
        lambda: SequentialSampler(data, 0),
        lambda: RandomSampler(data, rank=1),
        lambda: RandomSampler(data, world_size=2, rank=2),
        lambda: SequentialSampler(data, drop_last="x"),
        lambda: ReplacementSampler(data, num_samples=0),
    ):
        with pytest.raises(MegEngineError, match="Sampler: "):
            wrong()


class Backwards(SequentialSampler):
    def scatter(self, indices):
        return super().scatter(indices)[::-1]


class InOne(SequentialSampler):
    def batch(self):
        return [list(self.sample())]


def test_samplers_are_changed_by_their_parts():
    """`sample`, `scatter` and `batch` are what subclasses override, as in MegEngine."""
    assert list(Backwards(range(5), 2)) == [[4, 3], [2, 1], [0]]
    assert list(InOne(range(3))) == [[0, 1, 2]]
    assert SequentialSampler(range(10), 3, world_size=3, rank=1).scatter(list(range(10))) == [1, 4, 7, 0]
    sampler = StreamSampler(2)
    assert [next(sampler.sample()), next(sampler.batch())] == [0, [0, 1]]
    assert dist.helper.synchronized(len)([1]) == dist.synchronized(len)([1]) == 1
    with dist.override_backend("nccl"):
        assert dist.get_world_size() == 1
    assert dist.group_start() is dist.group_end() is None


class Counting(StreamDataset):
    def __init__(self, count):
        super().__init__()
        self.count = count

    def __iter__(self):
        return iter(range(self.count))


def test_the_rest_of_a_finite_stream_is_the_last_batch():
    """And nothing is asked of the stream after its end; the next pass begins anew."""
    loader = DataLoader(Counting(5), StreamSampler(2))
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4]]
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4]]
    assert [len(batch) for batch in DataLoader(Counting(4), StreamSampler(2))] == [2, 2]
    assert list(DataLoader(Counting(0))) == []


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: Counting(2)[1], "Counting: a stream has no item 1; iterate over it"),
        (lambda: len(Counting(2)), "Counting: a stream has no length; iterate over it"),
        (lambda: len(DataLoader(Counting(2))), "batches of a StreamDataset have no number"),
        (lambda: DataLoader(Counting(2), SequentialSampler([1])), "sampler of a Counting is a SequentialSampler; exp"),
        (lambda: DataLoader([1], StreamSampler()), "sampler of a list is a StreamSampler; expected one that gives"),
        (lambda: DataLoader([1], collator=len), "collator is a builtin_function_or_method; expected a Collator"),
        (lambda: ConcatDataset([Counting(2)]), "got a Counting; expected data sets with a length"),
        (lambda: ArrayDataset(3), "ArrayDataset: got a int; expected arrays"),
        (lambda: SequentialSampler([1], indices=3), "indices is a int; expected a sequence of integers"),
        (lambda: SequentialSampler([1], drop_last=3), "drop_last is 3; expected True or False"),
        (lambda: ReplacementSampler([1], num_samples=2.5), "num_samples is 2.5; expected an integer of at least 1"),
        (lambda: VisionDataset("a", order=3), "VisionDataset: order is 3; expected a sequence of names"),
        (
            lambda: VisionDataset("a", order=["boxes"], supported_order=["image", "mask"]),
            "VisionDataset: order names 'boxes'; supported are image, mask",
        ),
        (lambda: T.Pad(order=3), "Pad: order is 3; expected a sequence of names, such as"),
        (lambda: T.Pad(order=["label"]), "Pad: order names 'label'; supported are image, coords"),
        (lambda: T.Pad(1, "a"), "Pad: value is 'a'; expected a number, or one for each channel"),
        (lambda: T.CenterCrop((1, 2, 3)), r"CenterCrop: output_size is \(1, 2, 3\); expected one length or"),
        (lambda: T.CenterCrop(1, order=["mask"]).apply(([[1.0]],)), "expected an 'image' among the parts"),
        (lambda: T.ToMode().apply("a"), "ToMode: a picture has shape"),
        (lambda: T.ToMode().apply([["a"]]), "ToMode: a picture holds values of <U1; expected numbers"),
        (lambda: T.Compose([T.ToMode()], shuffle_indices=[(0, 1)]), r"shuffle_indices is .*; expected 1 to 1"),
        (lambda: Collator().apply([]), r"Collator: inputs is \[\]; expected one item or more, in a list"),
        (lambda: amp.GradScaler().backward(3, mge.tensor(1.0)), "backward: gm is 3; expected a GradManager"),
        (lambda: amp.GradScaler().unscale([3]), "unscale: got 3; expected tensors"),
        (lambda: amp.GradScaler().load_state_dict(3), "load_state_dict: state is 3; expected a dict"),
        (lambda: module_stats(3, input_shapes=(1, 3)), "module_stats: model is 3; expected a Module"),
        (lambda: module_stats(M.ReLU(), input_shapes=3), "input_shapes holds 3; expected shapes such as"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(call, text):
    """By errors that are AssertionError, ValueError or TypeError where MegEngine's are (see data_habits.py)."""
    with pytest.raises(MegEngineError, match=text) as caught:
        call()
    assert isinstance(caught.value, AssertionError) and isinstance(caught.value, ValueError)


@pytest.mark.parametrize("transform", [T.Pad(1), T.CenterCrop(2), T.RandomCrop(2), T.RandomHorizontalFlip(1.0)])
@pytest.mark.parametrize(
    ("part", "value", "text"),
    [
        ("mask", 3, r"mask has shape \(\); expected \[H,W\] or \[H,W,C\]"),
        ("mask", [[1], [2, 3]], r"mask is \[a list, a list\]; expected"),
        ("mask", "x", "mask holds 'x'; expected numbers"),
        ("coords", np.zeros(3), r"coords has shape \(3,\); expected \[...,2\]"),
        ("boxes", np.zeros((2, 3)), r"boxes has shape \(2, 3\); expected \[N,4\]"),
        ("keypoints", 3, r"keypoints has shape \(\); expected \[...,N,3\]"),
        ("polygons", None, "polygons are None; expected lists of lists of coords"),
        ("polygons", [[[1, 2, 3]]], r"polygon has shape \(3,\); expected an even number of values"),
    ],
)
def test_parts_of_other_forms_are_refused_by_name(transform, part, value, text):
    transform.order = ("image", part)
    with pytest.raises(MegEngineError, match=f"({type(transform).__name__}|Pad): {text}"):
        transform.apply((np.zeros((4, 4, 3), np.uint8), value))


def test_masks_of_two_axes_move_with_their_picture():
    """MegEngine refuses masks [H,W] in most transforms; here they are cut, padded and exchanged as [H,W,1] is."""
    mask, order = np.arange(24, dtype=np.uint8).reshape(4, 6), ("image", "mask")
    picture = np.repeat(mask[..., None], 3, axis=2)
    for kind, args in ((T.RandomHorizontalFlip, (1,)), (T.Pad, (2, (7, 7, 7), 7)), (T.RandomCrop, (5, 1, [7] * 3, 7))):
        moved, cut = kind(*args, order=order).apply((picture, mask))
        np.testing.assert_array_equal(moved[..., 0], cut)


def test_batches():
    pictures = np.arange(2 * 6 * 5 * 3, dtype=np.uint8).reshape(2, 6, 5, 3)
    flow = T.Compose([T.CenterCrop(4), T.RandomHorizontalFlip(1.0), T.Normalize(128.0, 2.0), T.ToMode()])
    ((x, y),) = DataLoader(ArrayDataset(pictures, [3, 4]), SequentialSampler(pictures, 2), flow)
    want = ((pictures[:, 1:5, 0:4][:, :, ::-1] - np.float32(128)) / 2).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(x, want)
    assert y.tolist() == [3, 4]
    assert Collator().apply([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}])["a"].tolist() == [1, 2]
    assert T.RandomCrop((2, 3)).apply(pictures[0]).shape == (2, 3, 3)
    np.testing.assert_array_equal(T.RandomVerticalFlip(1).apply(pictures[0]), pictures[0][::-1])
    for wrong in (
        lambda: T.CenterCrop(9).apply(pictures[0]),
        lambda: T.ToMode("HWC"),
        lambda: T.Normalize(0, 0),
        lambda: T.RandomHorizontalFlip(2),
        lambda: T.Compose([3]),
        lambda: ArrayDataset([1], [1, 2]),
        lambda: DataLoader(3),
        lambda: DataLoader(pictures, transform=3),
        lambda: DataLoader(pictures, sampler=3),
        lambda: DataLoader(pictures, num_workers=-1),
        lambda: Collator().apply([None, None]),
        lambda: ConcatDataset([]),
        lambda: ConcatDataset([pictures])[2],
        lambda: T.Pad((1, 2, 3)),
        lambda: T.Pad(-1),
        lambda: T.TorchTransformCompose,
        lambda: mge.data.dataset.Published,
    ):
        with pytest.raises(MegEngineError, match="expected|define|smaller|no attribute|out of range"):
            wrong()


def test_options_of_traces():
    given = jit.trace(lambda x: x, True, False, sublinear_memory_config=jit.SublinearMemoryConfig(genetic_nr_iter=3))
    assert given(2) == 2
    assert given.options["symbolic"] is True
    assert given.options["sublinear_memory_config"].genetic_nr_iter == 3
    assert (jit.DTRConfig().evictee_minimum_size, jit.GraphOptimizationConfig().jit_fuse_reduce) == (1024**2, None)
    assert issubclass(jit.TraceError, MegEngineError)
    with pytest.raises(TypeError, match="options by place; expected at most"):
        jit.trace(lambda x: x, *range(99))
    with pytest.raises(TypeError, match="did you mean 'symbolic'"):
        jit.trace(lambda x: x, symbolik=True)


def test_memory_formats():
    net, x = M.Linear(2, 2), mge.tensor([1.0])
    assert amp.convert_module_format(net) is net
    copied = amp.convert_module_format(net, inplace=False)
    assert copied is not net
    np.testing.assert_array_equal(copied.weight.numpy(), net.weight.numpy())
    assert amp.convert_tensor_format(x) is x
    assert amp.convert_tensor_format(x, inplace=False) is not x
    assert (amp.enabled, amp.low_prec_dtype, amp.high_prec_dtype) == (False, "float16", "float32")


def test_parts_that_are_reached_by_attributes():
    """In a process of its own: no other import has brought them in."""
    code = (
        "import megengine as mge, megengine.functional as F; x = mge.tensor([1.0]); "
        "print(F.distributed.all_reduce_sum(x) is x, F.external.__name__, F.utils.__name__, F.debug_param.__name__, "
        "F.tensor_cache.__name__, mge.cgtools.__name__, mge.config.benchmark_with_subprocess)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = ["external", "utils", "debug_param", "tensor_cache"]
    wanted = ["True", *(f"megengine.functional.{n}" for n in names), "megengine.utils.comp_graph_tools", "False"]
    assert done.stdout.split() == wanted
