"""Record what the real MegEngine gives to lines that people write: `python idioms.py OUT.json`, with megengine 1.13.0 installed.

Each idiom takes the engine and its functional module and returns tensors, arrays, numbers or strings, nested.
"""

# pyright: reportOperatorIssue=false

import json
import sys

import numpy as np

IDIOMS = {}


def idiom(function):
    """Keep a function under its name."""
    IDIOMS[function.__name__] = function
    return function


def values(*shape):
    """The same numbers at every call."""
    return np.random.RandomState(len(shape)).randn(*shape).astype(np.float32)


@idiom
def targets_of_chosen_rows(mge, F):
    labels = mge.tensor(np.array([0, 1, 2, -1, 5, 0], np.int32))
    logits = mge.tensor(values(6, 5))
    foreground, valid = labels > 0, labels >= 0
    targets = F.zeros_like(logits)
    targets[foreground, labels[foreground] - 1] = 1
    return targets, targets[valid], logits[valid], F.maximum(foreground.sum(), 1)


@idiom
def labels_from_matched_boxes(mge, F):
    labels, boxes = mge.tensor(np.array([0, 1, 1, 0], np.int32)), mge.tensor(values(4, 5) * 3)
    foreground = labels == 1
    labels[foreground] = boxes[foreground, 4].astype(np.int32)
    return labels


@idiom
def a_tensor_cuts_a_slice(mge, F):
    boxes, count = mge.tensor(values(2, 6, 5)), mge.tensor(np.array([3, 4], np.int32))
    return boxes[0, : count[0]], boxes[1, : count[1], :4]


@idiom
def arrays_beside_tensors(mge, F):
    x, mean = mge.tensor(values(1, 3, 2, 2)), np.array([1.0, 2.0, 3.0], np.float32)
    return x - mean[None, :, None, None], mean[None, :, None, None] * x


@idiom
def numbers_are_joined(mge, F):
    info = mge.tensor(values(1, 4))
    w, h = info[0, 1] / info[0, 3], info[0, 0] / info[0, 2]
    return F.concat([w, h, w, h], axis=0), F.concat([w, info[0]])


@idiom
def random_masking(mge, F):
    x, noise = mge.tensor(values(2, 5, 3)), mge.tensor(values(2, 5))
    order = F.argsort(noise)
    back = F.argsort(order)
    kept = F.expand_dims(order[:, :3], axis=-1)
    mask = F.ones([2, 5], device=x.device)
    mask[:, :3] = 0
    return F.gather(x, axis=1, index=F.repeat(kept, 3, axis=2)), F.gather(mask, axis=1, index=back)


@idiom
def masks_in_arithmetic(mge, F):
    mask = mge.tensor(values(4)) > 0
    return 1 - mask, (1 - mask) > 0, mask * 2, mask * 2.5, mask.sum(), mask.astype("float32"), ~mask


@idiom
def sampled_labels(mge, F):
    labels = mge.tensor(np.array([1, 0, 1, 1], np.int32))
    drop = mge.tensor(np.array([True, False, False, True]))
    return labels * (1 - drop) + drop * -1


@idiom
def one_column_per_row(mge, F):
    x = mge.tensor(values(4, 3))
    best = F.argmax(x, axis=1)
    return F.nn.indexing_one_hot(x, best.astype(np.int32), 1), x[F.arange(4, dtype=np.int32), best]


@idiom
def python_loops(mge, F):
    rates = [x.item() for x in F.linspace(0, 0.3, 4)]
    rows = [row.sum() for row in mge.tensor(values(3, 2))]
    return rates, sum(rows), len(rows)


@idiom
def another_tensor_for_a_parameter(mge, F):
    layer = mge.module.Linear(3, 2)
    layer.weight = mge.tensor(np.ones((2, 3), np.float32))
    return layer(mge.tensor(np.ones((1, 3), np.float32))) - layer.bias, len(list(layer.parameters()))


@idiom
def parameters_are_written_into(mge, F):
    p = mge.Parameter(np.zeros((3, 2), np.float32))
    p[1] = 5
    p[0, 0] = 2.0
    p += 1
    return p, type(p).__name__


@idiom
def shapes_as_numbers(mge, F):
    x = mge.tensor(values(2, 3, 4, 6))
    n, c, h, w = x.shape
    return x.reshape(n, c, h * w).shape, x.transpose(0, 2, 3, 1).reshape(n, -1, c), (int(h) + 31) // 32 * 32


@idiom
def floor_division_of_indices(mge, F):
    found = mge.tensor(np.array([7, 8, 19], np.int32))
    return found // 4, found % 4, found / 4, found * 2.5, found**2


@idiom
def sets_of_boxes(mge, F):
    boxes = mge.tensor(np.array([[0, 0, 10, 10], [1, 1, 10, 10], [20, 20, 30, 30]], np.float32))
    scores = mge.tensor(np.array([0.9, 0.8, 0.7], np.float32))
    kept = F.vision.nms(boxes, scores, 0.5)
    return kept, F.concat((boxes[kept], scores[kept].reshape(-1, 1)), axis=1)


@idiom
def best_scores(mge, F):
    x = mge.tensor(values(3, 6))
    return F.topk(x, 2, descending=True), F.topk(x.flatten(), 3), F.sort(x, descending=True)


@idiom
def masks_are_combined(mge, F):
    labels = mge.tensor(np.array([0, 3, 81, -1], np.int32))
    inside = (labels >= 0) & (labels != 81)
    inside &= labels > 0
    total = F.zeros((4,), dtype=bool)
    total[mge.tensor(np.array([0, 2], np.int32))] = True
    return inside, inside | total, F.logical_not(inside)


@idiom
def values_are_scattered(mge, F):
    where = mge.tensor(np.array([[0, 2], [1, 4]], np.int32))
    marks = F.scatter(F.zeros((2, 5)).astype(bool), axis=1, index=where, source=F.ones_like(where).astype(bool))
    return marks, F.scatter(F.zeros((2, 5)), 1, where, mge.tensor(values(2, 2)))


@idiom
def steps_by_hand(mge, F):
    p = mge.Parameter(np.array([1.0, 2.0], np.float32))
    manager = mge.autodiff.GradManager().attach([p])
    for _ in range(2):
        with manager:
            manager.backward((p * p).sum())
        p -= 0.1 * p.grad
        p.grad = None
    return p, type(p).__name__


@idiom
def a_parameter_changes_while_recorded(mge, F):
    p = mge.Parameter(np.array([1.0, 2.0], np.float32))
    manager = mge.autodiff.GradManager().attach([p])
    with manager:
        square = p * p
        p *= 10
        manager.backward((square + p).sum())
    return p, p.grad


@idiom
def averaged_weights(mge, F):
    average, current = mge.tensor(np.zeros(3, np.float32)), mge.Parameter(np.ones(3, np.float32))
    known = average
    for _ in range(3):
        average *= 0.9
        average += 0.1 * current
    return known


@idiom
def clipped_gradients(mge, F):
    p = mge.Parameter(np.ones(2, np.float32))
    manager = mge.autodiff.GradManager().attach([p])
    with manager:
        manager.backward((p * 30).sum())
    norm = mge.optimizer.clip_grad_norm([p], 1.0)
    return norm, norm.item(), p.grad


@idiom
def groups_of_parameters(mge, F):
    layer = mge.module.Linear(2, 2)
    groups = [{"params": [layer.weight], "lr": 0.1}, {"params": [layer.bias]}]
    optimizer = mge.optimizer.SGD(groups, lr=0.5, momentum=0.9)
    for group in optimizer.param_groups:
        group["lr"] *= 0.1
    return [group["lr"] for group in optimizer.param_groups]


@idiom
def what_modules_are_called(mge, F):
    M = mge.module
    net = M.Sequential(M.Conv2d(3, 4, 3), M.BatchNorm2d(4), M.ReLU())
    names = [[n for n, _ in found] for found in (net.named_parameters(), net.named_buffers(), net.named_modules())]
    return names, sorted(net.state_dict()), repr(net)


@idiom
def printed(mge, F):
    shown = [mge.tensor([1, 2]), mge.tensor([[1.5, 2.0], [0.0, 1.0]]), mge.Parameter([1.0]), mge.tensor([True])]
    return [repr(t).split(", device")[0] for t in shown]


def plain(value):
    """Tensors as dtype, shape and numbers; sequences as lists."""
    if hasattr(value, "numpy"):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return {
            "dtype": value.dtype.name,
            "shape": list(value.shape),
            "values": [round(float(x), 6) for x in value.flat],
        }
    return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value


if __name__ == "__main__":
    import megengine
    import megengine.autodiff
    import megengine.functional
    import megengine.module
    import megengine.optimizer
    import megengine.quantization
    import megengine.random
    import megengine.traced_module

    import moved_programs  # noqa: F401  (enters its own)
    import programs  # noqa: F401
    import scripts
    import training_programs  # noqa: F401

    megengine.config.async_level = 0
    answers = {name: plain(function(megengine, megengine.functional)) for name, function in scripts.IDIOMS.items()}
    with open(sys.argv[1], "w") as file:
        json.dump(answers, file, indent=0)
