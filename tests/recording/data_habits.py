"""Habits of data sets, samplers, transforms and scaled gradients (see habits.py)."""

import collections
import itertools

import numpy as np

HABITS = {}


def habit(function):
    """Keep a function under its name."""
    HABITS[function.__name__] = function
    return function


def refuses(kind, call):
    """Whether a call raises an error of this kind."""
    try:
        call()
    except kind:
        return True
    return False


def rows(mge, count=10):
    """A data set of rows and their numbers."""
    return mge.data.dataset.ArrayDataset(np.arange(2 * count).reshape(count, 2), np.arange(count))


def stream(mge, item, count=None):
    """A stream of item(0), item(1), ..."""

    class Stream(mge.data.dataset.StreamDataset):
        def __init__(self):
            super().__init__()

        def __iter__(self):
            return map(item, itertools.count() if count is None else range(count))

    return Stream()


def batches(loader, count=2):
    """The first batches; dicts as their items."""
    found = itertools.islice(iter(loader), count)
    return [sorted(batch.items()) if isinstance(batch, dict) else batch for batch in found]


@habit
def abstract_bases_of_data(mge):
    data = mge.data
    kinds = [
        *(
            getattr(data.dataset, n)
            for n in ("Dataset", "StreamDataset", "ArrayDataset", "ConcatDataset", "VisionDataset")
        ),
        *(data.Sampler, data.MapSampler, data.StreamSampler, data.SequentialSampler, data.Infinite),
        *(data.transform.Transform, data.transform.VisionTransform, data.transform.Compose),
    ]
    found = [
        [k.__name__, sorted(k.__abstractmethods__), not k.__abstractmethods__ or refuses(TypeError, k)] for k in kinds
    ]

    class Items(data.dataset.Dataset):
        def __init__(self):
            super().__init__()

        def __getitem__(self, index):
            return index

    class Plain(data.Sampler):
        pass

    related = [issubclass(data.Infinite, data.MapSampler), issubclass(data.StreamSampler, data.MapSampler)]
    return found, refuses(TypeError, Items), refuses(TypeError, Plain), related


@habit
def streams_are_read_by_their_own_sampler(mge):
    data = mge.data
    sampler = data.StreamSampler(3)
    items = [lambda i: (np.full(2, i), i), lambda i: {"a": np.full(2, i), "b": i}, lambda i: i + 1]
    found = [batches(data.DataLoader(stream(mge, item), data.StreamSampler(2))) for item in items]
    alone = data.DataLoader(stream(mge, lambda i: (i, -i)))
    one = stream(mge, lambda i: (i, i))
    refusals = [
        refuses(TypeError, lambda: len(sampler)),
        refuses(AssertionError, lambda: len(one)),
        refuses(AssertionError, lambda: one[0]),
        refuses(TypeError, lambda: len(data.DataLoader(one, sampler))),
        refuses(AssertionError, lambda: data.DataLoader(one, data.SequentialSampler(rows(mge)))),
        refuses(AssertionError, lambda: data.DataLoader(one, data.Infinite(sampler))),
        refuses(AssertionError, lambda: data.DataLoader(rows(mge), sampler)),
    ]
    return batches(sampler), found, batches(alone), type(alone.sampler).__name__, alone.sampler.batch_size, refusals


@habit
def folders_of_pictures(mge):
    kind = mge.data.dataset.VisionDataset
    home = kind("~").root != "~" and kind("~/a").root.endswith("/a")
    given = kind("b", order=["image", "mask"]), kind("b", order=("a",)), kind(None, supported_order=("image",))
    refusals = [
        refuses(ValueError, lambda: kind("b", order=3)),
        refuses(NotImplementedError, lambda: kind("b", order=("boxes",), supported_order=("image",))),
        refuses(NotImplementedError, lambda: kind("b")[0]),
        refuses(NotImplementedError, lambda: len(kind("b"))),
    ]
    return home, kind("b").order, [[str(g.root), list(g.order)] for g in given], refusals


@habit
def wrong_arguments_of_data(mge):
    data, a, T = mge.data, rows(mge), mge.data.transform
    samplers = data.SequentialSampler, data.RandomSampler, data.ReplacementSampler
    found = []
    for kind in samplers:
        wrong = [{"batch_size": b} for b in (0, "a", 2.0)] + [{"drop_last": d} for d in (3, "a")]
        found += [refuses(ValueError, lambda k=kind, w=w: k(a, **w)) for w in wrong]
        found.append(refuses(TypeError, lambda k=kind: k(3)))
        found += [refuses(AssertionError, lambda k=kind, r=r: list(k(a, world_size=2, rank=r, seed=1))) for r in (2, -1)
                  if kind is not data.SequentialSampler]  # fmt: skip
    found += [refuses(ValueError, lambda k=k: k(a, indices=3)) for k in samplers[:2]]
    found += [refuses(ValueError, lambda n=n: samplers[2](a, num_samples=n)) for n in (0, "a", 2.5)]
    found += [refuses(ValueError, lambda w=w: samplers[2](a, weights=w)) for w in (3, [1, 2])]
    concat = data.dataset.ConcatDataset
    found += [
        refuses(AssertionError, lambda: concat([])),
        refuses(TypeError, lambda: concat(3)),
        refuses(IndexError, lambda: concat([a])[10]),
        refuses(ValueError, lambda: concat([a])[-11]),
        refuses(TypeError, lambda: data.dataset.ArrayDataset(3)),
        refuses(ValueError, lambda: data.dataset.ArrayDataset([1], [1, 2])),
        refuses(AssertionError, lambda: data.DataLoader(3)),
        refuses(AssertionError, lambda: data.DataLoader(a, sampler=3)),
        refuses(ValueError, lambda: data.DataLoader(a, num_workers=-1)),
        refuses(ValueError, lambda: data.DataLoader(a, timeout=-1)),
        refuses(TypeError, lambda: data.DataLoader(a, num_workers="a")),
        refuses(TypeError, lambda: data.Collator().apply([None])),
        refuses(TypeError, lambda: data.Infinite(3)),
    ]
    picture = np.zeros((4, 4, 3), np.uint8)
    found += [refuses(NotImplementedError, lambda o=o: T.VisionTransform(order=o)) for o in (("label",), "image")]
    found += [
        refuses(ValueError, lambda: T.VisionTransform(order=3)),
        refuses(AssertionError, lambda: T.ToMode("HWC")),
        refuses(AssertionError, lambda: T.CenterCrop(9).apply(picture)),
        refuses(ValueError, lambda: T.Normalize("a")),
        refuses(ValueError, lambda: T.Pad("a")),
        refuses(ValueError, lambda: T.CenterCrop(2).apply(np.zeros((1, 4, 4, 3)))),
        refuses(TypeError, lambda: T.Compose(3)),
        refuses(NotImplementedError, lambda: T.Compose(order="a")),
    ]
    return found


@habit
def parts_of_pictures_change_together(mge):
    T, found = mge.data.transform, []
    order = ("image", "mask", "coords", "boxes", "keypoints", "boxes_category", "info")
    picture = np.arange(4 * 6 * 3).reshape(4, 6, 3).astype(np.uint8)
    item = (
        picture,
        np.arange(24).reshape(4, 6, 1).astype(np.uint8),
        np.array([[0, 1], [5.0, 3]]),
        np.array([[0, 1, 3, 4], [2.0, 0, 5, 2]]),
        np.array([[[1.0, 2, 1], [3, 0, 0]]]),
        np.array([1, 2]),
        "folder",
    )
    for kind, given in (
        (T.RandomHorizontalFlip, (1,)),
        (T.RandomVerticalFlip, (1,)),
        (T.RandomVerticalFlip, (0,)),
        (T.Pad, ((1, 2, 3, 4), 5, 9)),
        (T.CenterCrop, ((2, 3),)),
        (T.CenterCrop, ((1, 1),)),
        (T.Normalize, (1, 2)),
        (T.ToMode, ()),
        (T.RandomCrop, ((4, 6), 0)),
        (T.RandomCrop, ((8, 10), 2, [1, 2, 3])),
    ):
        given_item = tuple(part.copy() if isinstance(part, np.ndarray) else part for part in item)
        changed = kind(*given, order=order).apply(given_item)
        found.append([kind.__name__, *[np.squeeze(p) if n == "mask" else p for n, p in zip(order, changed)]])
    polygons = T.Pad((1, 2, 3, 4), order=("image", "polygons")).apply((picture, [[item[2]], [item[2] + 1]]))[1]
    return found, polygons


@habit
def transforms_one_after_the_other(mge):
    T = mge.data.transform
    x = np.arange(24).reshape(2, 4, 3).astype(np.uint8)
    flow = T.Compose([T.Pad(1), T.ToMode()], order=("image", "info"))
    together = T.Compose([T.Pad(1), T.ToMode()], batch_compose=True).apply_batch([x, x])
    # of the last three steps, whatever their order, one doubles and one adds: the sum of both orders is known
    shuffled = T.Compose([T.ToMode(), T.Normalize(0, 0.5), T.Normalize(-1, 1)], shuffle_indices=[(2, 3)])
    ends = {float(shuffled.apply(x).max()) for _ in range(60)}
    return flow.apply((x, 3)), [list(t.order) for t in flow.transforms], list(together), sorted(ends)


@habit
def several_losses_are_scaled(mge):
    import megengine.amp as amp

    found, t = [], mge.tensor
    for unscale in (True, False):
        for choose in (
            lambda z, v: ([z], None),
            lambda z, v: ([z, v], None),
            lambda z, v: (z, [t(2.0)]),
            lambda z, v: ([z], t(2.0)),
            lambda z, v: ([z, v], [t(2.0), t([1.0, 2.0, 3.0])]),
            lambda z, v: ([z, v], [t(2.0)]),
            lambda z, v: (2, None),
        ):
            x = mge.Parameter([1.0, 2.0, 3.0])
            manager, scaler = mge.autodiff.GradManager().attach([x]), amp.GradScaler(init_scale=4.0)
            with manager:
                y, dy = choose((x * x).sum(), x * 3)
                wrong = refuses(
                    (TypeError, RuntimeError), lambda: scaler.backward(manager, y, dy, unscale_grad=unscale)
                )
            found.append([wrong, None if wrong else x.grad])
    return found


@habit
def costs_are_counted_of_inputs_first(mge):
    from megengine.utils.module_stats import module_stats

    net, x = mge.module.Sequential(mge.module.Conv2d(3, 8, 3)), np.zeros((1, 3, 8, 8), np.float32)
    total, _ = module_stats(net, inputs=x, input_shapes=(1, 3, 9, 9), logging_to_stdout=False)
    refusals = [
        refuses(TypeError, lambda: module_stats(net, input_shapes=3)),
        refuses(RuntimeError, lambda: module_stats(net, input_shapes=(1, 3), logging_to_stdout=False)),
        refuses(RuntimeError, lambda: module_stats(net, input_shapes="a", logging_to_stdout=False)),
        refuses(TypeError, lambda: module_stats(net, x, bar_length_max="a", logging_to_stdout=False)),
    ]
    return list(map(int, total)), refusals


@habit
def pictures_get_another_size(mge):
    T, random, found = mge.data.transform, np.random.RandomState(0), []
    for height, width in ((6, 9), (9, 5)):
        image = random.randint(0, 256, (height, width, 1)).astype(np.uint8)

        def changed(make, image=image):
            item = image.copy(), np.array([[1, 2, 4, 5.0]]), image.copy(), np.array([[3, 4]])
            return make(order=("image", "boxes", "mask", "coords")).apply(item)

        found += [T.Resize(size).apply(image) for size in ((5, 6), 4, [height, width], (height // 2, 7))]
        found += [T.Resize((4, 7), 0).apply(image), T.Resize((7, 4)).apply(image.astype(np.float32))]
        whole = {"scale_range": (1.0, 1.0), "ratio_range": (width / height, width / height)}
        found += changed(lambda **order: T.Resize((4, 8), **order))
        found += changed(lambda **order: T.RandomResize((1.25, 1.25), **order))
        found += changed(lambda whole=whole, **order: T.RandomResizedCrop((3, 5), **whole, **order))
        for ratios in ((0.75, 4 / 3), (0.2, 0.3), (4, 5.0)):  # no part is as large: the middle is taken
            found += changed(lambda ratios=ratios, **order: T.RandomResizedCrop(3, (3.0, 3.0), ratios, **order))
    return found


@habit
def shorter_sides_get_a_length(mge):
    make, found = mge.data.transform.ShortestEdgeResize, []
    for height, width in ((20, 30), (30, 20), (10, 50), (33, 17), (9, 50), (7, 7)):
        for least, most, style in ((15, 99, "range"), (15, 20, "range"), ((15, 15), 30, "range"), ([10], 99, "choice")):
            found.append(make(least, most, style).apply(np.zeros((height, width, 1), np.uint8)).shape)
    return [list(shape) for shape in found]


@habit
def colours_are_changed(mge):
    from types import SimpleNamespace

    T, picture = mge.data.transform, np.random.RandomState(0).randint(0, 256, (4, 5, 3)).astype(np.uint8)
    picture[0, :2], picture[1, 0], found = picture[0, :2, :1], 255, []
    kept = {name: getattr(np.random, name) for name in ("uniform", "normal", "permutation")}
    own = getattr(mge.random, "generator", None)
    drawn = dict.fromkeys(("uniform",), lambda *_: drawn["strength"])
    drawn["normal"] = lambda *_, **given: np.resize([25.0, -10.0, 5.0], given.get("size") or (4, 5, 3)) / drawn["parts"]
    drawn["permutation"] = lambda number: np.array([1, 0, 3, 2]) if number == 4 else np.arange(number)
    try:
        for name in kept:  # the numbers that MegEngine draws, and those that this engine does
            setattr(np.random, name, lambda *a, _name=name, **k: drawn[_name](*_numbers(a), **k))
        mge.random.generator = lambda: SimpleNamespace(**{name: drawn[name] for name in kept})
        for drawn["strength"], drawn["parts"] in ((0.6, 1), (1.3, 0.5), (-0.2, 300), (0.45, 100)):
            for kind in ("uint8", "float32"):
                for part in ("Brightness", "Contrast", "Saturation", "Hue"):
                    found.append(getattr(T, part + "Transform")(0.4).apply(picture.astype(kind)))  # noqa: PERF401
                found += [
                    T.Lighting(0.1).apply(picture.astype(kind)),
                    T.GaussianNoise(0, 1).apply(picture.astype(kind)),
                ]
        return [*found, T.ColorJitter(0.4, 0.4, 0.4, 0.4).apply(picture), T.ColorJitter().apply(picture)]
    finally:
        for name, function in kept.items():
            setattr(np.random, name, function)
        mge.random.generator = own


def _numbers(arguments):
    """MegEngine permutes a tuple of places; this engine a number of them."""
    return [len(a) if isinstance(a, tuple) else a for a in arguments]


@habit
def transforms_of_ones_own_take_any_part(mge):
    T = mge.data.transform

    class Doubled(T.VisionTransform):
        def _apply_image(self, image):
            return [type(image).__name__, image * 2]

    wave, spectrum = np.arange(4, dtype=np.float32), np.arange(6, dtype=np.float32).reshape(2, 3)
    alone = [Doubled().apply(part) for part in (wave, spectrum, "ab", 3)]
    scaled = [T.Normalize(1.0, 2.0).apply(part) for part in (wave, spectrum, spectrum.reshape(1, 1, 2, 3))]
    return alone, T.Compose([Doubled()]).apply(spectrum), scaled, T.Normalize([1.0, 2.0, 3.0]).apply(spectrum)


@habit
def named_tuples_in_batches(mge):
    Pair = collections.namedtuple("Pair", "picture label")
    batch = mge.data.Collator().apply([Pair(np.arange(2), 1), Pair(np.arange(2), 3)])
    return type(batch).__name__, batch.picture, batch.label


@habit
def functions_of_pictures(mge):
    import importlib

    change = importlib.import_module("megengine.data.transform.vision.functional")
    colour = np.random.RandomState(0).randint(0, 256, (4, 3, 3)).astype(np.uint8)
    gray = change.to_gray(colour)
    borders = [change.pad(colour, 1, (1, 2, 3)), change.pad(gray, (1, 0, 2, 0), 7), change.pad(colour, (1, 2), 5)]
    flips = [change.flip(colour, code) for code in (-1, 0, 1)]
    sizes = [change.resize(colour, (2, 5)), change.resize(gray, [8, 3], 0)]
    own = change.wrap_keepdims(lambda image, k=1: image[:, :, 0] * k)(gray, k=2)
    both = mge.data.dataset.ConcatDataset([rows(mge, 3), rows(mge, 4)])
    return gray, change.to_bgr(gray), borders, flips, sizes, own, both.cumulative_sizes
