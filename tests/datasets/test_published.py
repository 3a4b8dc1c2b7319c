"""Readers of published data sets, on files of their formats with known content (run beside MegEngine 1.13, too)."""

import gzip
import io
import json
import pickle
import random
import shutil
import struct
import tarfile
from typing import ClassVar

import numpy as np
import pytest
from damage import damaged_json
from PIL import Image

from megengine.core.errors import ArgumentError, FileFormatError, MegEngineError, MissingFileError, OptionError
from megengine.data.dataset import CIFAR10, CIFAR100, COCO, MNIST, Cityscapes, ImageNet, Objects365, PascalVOC
from megengine.data.dataset.vision.utils import calculate_md5, is_img, load_raw_data_from_url, untar

RNG = np.random.default_rng(0)


def picture(path, h=6, w=8):
    """A lossless picture; returns what readers give of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = RNG.integers(0, 256, (h, w, 3), np.uint8)
    Image.fromarray(pixels[..., ::-1]).save(path)
    return pixels


def compressed(path, head, values):
    path.write_bytes(gzip.compress(struct.pack(f">{len(head)}I", *head) + values.tobytes()))


@pytest.fixture
def digits(tmp_path):
    pictures, classes = RNG.integers(0, 256, (5, 28, 28), np.uint8), np.array([3, 1, 8, 7, 0], np.uint8)
    for images, labels in (MNIST.raw_file_name[:2], MNIST.raw_file_name[2:]):
        compressed(tmp_path / images, (2051, *pictures.shape), pictures)
        compressed(tmp_path / labels, (2049, len(classes)), classes)
    return tmp_path, pictures, classes


@pytest.mark.parametrize("train", [True, False])
def test_mnist(digits, train):
    folder, pictures, classes = digits
    data = MNIST(str(folder), train=train, download=False)
    assert len(data) == 5 and data.meta["images"] == {"magic": 2051, "imgs": 5, "height": 28, "width": 28}
    for i, (image, label) in enumerate(data[k] for k in range(5)):
        np.testing.assert_array_equal(image, pictures[i][..., None], strict=True)
        assert label == classes[i] and label.dtype == np.int32


@pytest.mark.parametrize("damage", ["cut", "head", "sizes", "not gzip", "absent"])
def test_mnist_that_is_damaged(digits, damage):
    folder, pictures, _ = digits
    path = folder / MNIST.raw_file_name[0]
    head = {"head": (2050, *pictures.shape), "sizes": (2051, 1 << 31, 1 << 30, 1 << 30)}
    match damage:
        case "cut":
            path.write_bytes(path.read_bytes()[:-100])
        case "not gzip":
            path.write_bytes(b"nothing")
        case "absent":
            path.unlink()
        case _:
            compressed(path, head[damage], pictures)
    with pytest.raises(MissingFileError if damage == "absent" else FileFormatError, match="MNIST"):
        MNIST(str(folder), download=False)


class OfPython2(pickle._Pickler):
    """Writes bytes as text of Python 2, as cPickle did, and arrays with them."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_bytes(self, obj):
        short = len(obj) < 256
        self.write((b"U" + bytes([len(obj)]) if short else b"T" + struct.pack("<I", len(obj))) + obj)
        self.memoize(obj)

    dispatch[bytes] = save_bytes


def pickled(value, kind):
    file = io.BytesIO()
    kind(file, protocol=2).dump(value)
    return file.getvalue()


def cifar(kind, folder, pickler):
    inside, batches = folder / kind.raw_file_dir, {}
    inside.mkdir(parents=True)
    for name in (*kind.train_batch, *kind.test_batch):
        data = RNG.integers(0, 256, (4, 3072), np.uint8)
        held = {b"data": data, **{key.encode(): [5, 1, 0, 2] for key in kind._labels}}
        (inside / name).write_bytes(pickled(held, pickler))
        batches[name] = data
    (inside / kind.meta_info["name"]).write_bytes(pickled({b"label_names": [b"cat", b"dog"]}, pickler))
    return batches


@pytest.mark.parametrize("pickler", [pickle.Pickler, OfPython2])
@pytest.mark.parametrize("kind", [CIFAR10, CIFAR100])
def test_cifar(tmp_path, kind, pickler):
    batches = cifar(kind, tmp_path, pickler)
    for train, names in ((True, kind.train_batch), (False, kind.test_batch)):
        data = kind(str(tmp_path), train=train, download=False)
        assert len(data) == 4 * len(names) and data.meta == {b"label_names": [b"cat", b"dog"]}
        image, *labels = data[5 if len(names) > 1 else 1]
        wanted = batches[names[-1 if len(names) == 1 else 1]][1].reshape(3, 32, 32)
        np.testing.assert_array_equal(image, wanted.transpose(1, 2, 0)[..., ::-1], strict=True)
        assert labels == [1] * len(kind._labels) and all(label.dtype == np.int32 for label in labels)


def test_cifar_in_its_archive(tmp_path):
    cifar(CIFAR10, tmp_path / "made", pickle.Pickler)
    with tarfile.open(tmp_path / CIFAR10.raw_file_name, "w:gz") as archive:
        archive.add(tmp_path / "made" / CIFAR10.raw_file_dir, CIFAR10.raw_file_dir)
    assert len(CIFAR10(str(tmp_path), download=False)) == 20


class Hostile:
    def __reduce__(self):
        return print, ("run",)


@pytest.mark.parametrize("held", [{b"data": Hostile()}, [1], {b"data": np.zeros((2, 5), np.uint8), b"labels": [1, 2]}])
def test_cifar_that_is_damaged_or_hostile(tmp_path, held, capsys):
    cifar(CIFAR10, tmp_path, pickle.Pickler)
    (tmp_path / CIFAR10.raw_file_dir / "data_batch_3").write_bytes(pickle.dumps(held, 2))
    with pytest.raises(FileFormatError):
        CIFAR10(str(tmp_path), download=False)
    assert capsys.readouterr().out == ""


ANNOTATIONS = [  # image, category, box, more
    (1, 90, [1, 2, 3, 4], {"keypoints": [1, 2, 2] * 17}),
    (1, 1, [0, 0, 5, 5], {"keypoints": [0, 0, 0] * 17}),
    (1, 90, [1, 1, 2, 2], {"keypoints": [0, 0, 0] * 17, "iscrowd": 1}),
    (2, 1, [0, 0, 0, 5], {"keypoints": [1, 2, 1] * 9 + [0, 0, 0] * 8}),
]


@pytest.fixture
def boxes(tmp_path):
    pixels = {i: picture(tmp_path / f"{i}.png", 6 + i) for i in (3, 1, 2)}
    file = {
        "images": [{"id": i, "file_name": f"{i}.png", "height": 6 + i, "width": 8} for i in pixels],
        "categories": [{"id": i, "name": f"n{i}"} for i in (90, 1)],
        "annotations": [{"image_id": i, "category_id": c, "bbox": b, **more} for i, c, b, more in ANNOTATIONS],
    }
    (tmp_path / "a.json").write_text(json.dumps(file))
    return tmp_path, pixels, file


ALL = ("image", "boxes", "boxes_category", "info")


@pytest.mark.parametrize("kind", [COCO, Objects365])
def test_boxes(boxes, kind):
    folder, pixels, _ = boxes
    data = kind(str(folder), str(folder / "a.json"), order=ALL)
    assert len(data) == 3 and data.get_img_info(0)["file_name"] == "1.png"
    for (image, corners, classes, info), i in zip((data[k] for k in range(3)), (1, 2, 3), strict=True):
        np.testing.assert_array_equal(image, pixels[i], strict=True)
        wanted = [(x, y, x + w, y + h) for at, _, (x, y, w, h), _ in ANNOTATIONS if at == i]
        np.testing.assert_array_equal(corners, np.array(wanted, np.float32).reshape(-1, 4), strict=True)
        numbers = [{1: 1, 90: 2}[c] for at, c, *_ in ANNOTATIONS if at == i]
        np.testing.assert_array_equal(classes, np.array(numbers, np.int32), strict=True)
        assert info == [6 + i, 8, f"{i}.png"]


def test_pictures_without_boxes_are_left_out(boxes):
    folder, _, _ = boxes
    data = COCO(str(folder), folder / "a.json", True, order=("boxes", "keypoints"))
    corners, points = data[0]
    assert (
        len(data) == 1 and corners.shape == (2, 4) and points.shape == (2, 17, 3) and points[0, 3].tolist() == [1, 2, 2]
    )


def test_names_and_colours_of_classes():
    assert (len(COCO.class_names), len(Objects365.class_names), COCO.classes_originID["toothbrush"]) == (80, 365, 90)
    assert PascalVOC.class_colors[:6] == [
        [0, 0, 0],
        [0, 0, 128],
        [0, 128, 0],
        [0, 128, 128],
        [128, 0, 0],
        [128, 0, 128],
    ]
    assert PascalVOC.class_colors[20] == [128, 64, 0] and len(PascalVOC.class_colors) == 21


@pytest.mark.parametrize("seed", range(8))
def test_values_of_any_kind_in_files_of_boxes(boxes, seed):
    folder, _, file = boxes
    rng, path = random.Random(seed), folder / "a.json"
    for _ in range(40):
        path.write_bytes(damaged_json(json.dumps(file).encode(), rng))
        for kind in (COCO, Objects365):
            try:
                data = kind(str(folder), path, rng.random() < 0.5, order=("boxes", "boxes_category", "info"))
                _ = [data[i] for i in range(len(data))]
            except FileFormatError as error:
                assert "a.json" in str(error)


@pytest.mark.parametrize("part", ["images", "annotations", "categories"])
def test_boxes_in_damaged_files(boxes, part):
    folder, _, file = boxes
    path = folder / "a.json"
    for wrong in (5, [5], [{"id": 1}]):
        path.write_text(json.dumps({**file, part: wrong}))
        with pytest.raises(FileFormatError, match=part):
            _ = COCO(str(folder), path, order=ALL)[0] if part != "categories" or wrong != [{"id": 1}] else _bad(folder)
    path.write_text("{")
    with pytest.raises(FileFormatError, match="not JSON"):
        COCO(str(folder), path)
    path.unlink()
    with pytest.raises(MissingFileError, match=r"a\.json"):
        COCO(str(folder), path)


def _bad(folder):
    """A class that the categories do not have."""
    try:
        return COCO(str(folder), folder / "a.json", order=("boxes_category",))[0]
    except FileFormatError as error:
        assert "boxes_category of image 1" in str(error)
        raise FileFormatError("categories") from error


XML = """<annotation><object><name>dog</name><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>5</xmax><ymax>6</ymax></bndbox>
</object><object><name>{}</name><bndbox><xmin>2</xmin><ymin>1</ymin><xmax>4.5</xmax><ymax>3</ymax></bndbox></object>
</annotation>"""


@pytest.fixture
def voc(tmp_path):
    shown = {name: picture(tmp_path / "JPEGImages" / f"{name}.png") for name in ("000001", "000002")}
    mask = np.zeros((6, 8, 3), np.uint8)
    mask[1:3, 2:4], mask[4], mask[0, 0] = PascalVOC.class_colors[12], PascalVOC.class_colors[8], (192, 224, 224)
    for name in shown:
        shutil.move(tmp_path / "JPEGImages" / f"{name}.png", tmp_path / "JPEGImages" / f"{name}.jpg")
        for kind, ending, content in (
            ("Annotations", "xml", XML.format("cat").encode()),
            ("SegmentationClass", "png", b""),
        ):
            (tmp_path / kind).mkdir(exist_ok=True)
            (tmp_path / kind / f"{name}.{ending}").write_bytes(content)
        Image.fromarray(mask[..., ::-1]).save(tmp_path / "SegmentationClass" / f"{name}.png")
    for kind in ("Main", "Segmentation"):
        (tmp_path / "ImageSets" / kind).mkdir(parents=True)
        (tmp_path / "ImageSets" / kind / "val.txt").write_text("000002\n000001\n")
    return tmp_path, shown


def test_voc(voc):
    folder, shown = voc
    data = PascalVOC(str(folder), "val", order=("image", "boxes", "boxes_category", "info"))
    image, corners, classes, info = data[0]
    np.testing.assert_array_equal(image, shown["000002"], strict=True)
    np.testing.assert_array_equal(corners, np.array([[1, 2, 5, 6], [2, 1, 4.5, 3]], np.float32), strict=True)
    np.testing.assert_array_equal(classes, np.array([12, 8], np.int32), strict=True)
    assert len(data) == 2 and info == [6, 8, "000002"]
    (mask,) = PascalVOC(str(folder), "val", order=("mask",))[1]
    wanted = np.zeros((6, 8, 1), np.uint8)
    wanted[1:3, 2:4], wanted[4], wanted[0, 0] = 12, 8, 255
    np.testing.assert_array_equal(mask, wanted, strict=True)


def test_voc_that_is_wrong(voc):
    folder, _ = voc
    with pytest.raises(ArgumentError, match="not both"):
        PascalVOC(str(folder), "val", order=("boxes", "mask"))
    with pytest.raises(MissingFileError, match=r"train\.txt"):
        PascalVOC(str(folder), "train")
    file, data = folder / "Annotations" / "000002.xml", PascalVOC(str(folder), "val", order=("boxes", "boxes_category"))
    for text, told in ((XML.format("unicorn"), "unicorn"), ("<a>", "not XML"), (XML.replace("4.5", "x"), "numbers")):
        file.write_text(text)
        with pytest.raises(FileFormatError, match=told):
            _ = data[0]


def test_cityscapes(tmp_path):
    name, city = "aachen_000000_000019", tmp_path / "gtFine" / "val" / "aachen"
    pixels = picture(tmp_path / "leftImg8bit" / "val" / "aachen" / f"{name}_leftImg8bit.png")
    city.mkdir(parents=True)
    numbers = np.arange(48, dtype=np.uint8).reshape(6, 8)
    Image.fromarray(numbers).save(city / f"{name}_gtFine_labelIds.png")
    (city / f"{name}_gtFine_polygons.json").write_text(json.dumps({"imgHeight": 6, "imgWidth": 8}))
    image, mask, info = Cityscapes(str(tmp_path), "val", "gtFine", order=("image", "mask", "info"))[0]
    np.testing.assert_array_equal(image, pixels, strict=True)
    counted = [7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33]
    wanted = np.array([counted.index(n) if n in counted else 255 for n in range(48)], np.uint8).reshape(6, 8, 1)
    np.testing.assert_array_equal(mask, wanted, strict=True)
    assert info[:2] == [6, 8] and info[2].endswith("_leftImg8bit.png")
    for arguments, told in ((("val", "gtFin"), "gtFine"), (("tset", "gtFine"), "test")):
        with pytest.raises(OptionError, match=told):
            Cityscapes(str(tmp_path), *arguments)
    with pytest.raises(MissingFileError, match="train"):
        Cityscapes(str(tmp_path), "train", "gtFine")


def test_imagenet_in_folders(tmp_path):
    for part in ("train", "val"):
        for name in ("n01443537", "n01440764"):
            pixels = picture(tmp_path / part / name / "a.png")
    data = ImageNet(str(tmp_path), train=False)
    image, label = data[1]
    np.testing.assert_array_equal(ImageNet(str(tmp_path), False)[0][0], pixels, strict=True)
    assert (
        len(data) == 2
        and label == 1
        and image.shape == (6, 8, 3)
        and list(data.class_dict) == ["n01440764", "n01443537"]
    )
    with pytest.raises(MissingFileError, match="unpack"):
        ImageNet(str(tmp_path / "val"))


@pytest.mark.parametrize("kind", [MNIST, CIFAR10, CIFAR100])
def test_what_is_not_there_is_named(tmp_path, kind):
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(MissingFileError, match=r"download=True"):
            kind(str(folder), download=False)


def test_archives_write_inside_of_their_folder(tmp_path):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo("../outside"), io.BytesIO())
    with pytest.raises(FileFormatError, match="outside"):
        untar(path, tmp_path / "in")
    assert not (tmp_path / "outside").exists()
    path.write_bytes(b"no archive")
    with pytest.raises(FileFormatError, match=r"a\.tar"):
        untar(path)


def test_files_that_are_there_are_not_downloaded(tmp_path):
    path = tmp_path / "a"
    path.write_text("hello")
    assert calculate_md5(path) == "5d41402abc4b2a76b9719d911017c592"
    load_raw_data_from_url("http://nowhere.invalid/a", "a", calculate_md5(path), tmp_path)
    with pytest.raises(MegEngineError, match=r"nowhere\.invalid"):
        load_raw_data_from_url("http://nowhere.invalid/a", "a", "0" * 32, tmp_path)
    assert [is_img(name) for name in ("a.jpg", "a.PNG", "b.txt", "noext")] == [True, True, False, False]
