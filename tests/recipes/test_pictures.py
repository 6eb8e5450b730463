"""Forms in which a row may hold a picture, and the answers to all others."""

import base64
import io

import pytest
from PIL import Image, ImageDraw
from qwen_vl_utils import fetch_image

from recipes import pictures
from recipes.evaluation.vllm_engine import Engine
from tests.mistakes import mistake


def encoded(picture: Image.Image, form: str = "PNG") -> bytes:
    out = io.BytesIO()
    picture.save(out, form)
    return out.getvalue()


WHOLE = encoded(Image.new("RGB", (64, 48), (9, 30, 60)))
TEXT = base64.b64encode(WHOLE).decode()
STRIP = encoded(Image.new("RGB", (900, 4)))

_out = io.BytesIO()
Image.new("RGB", (9, 9)).save(_out, "GIF", save_all=True, append_images=[Image.new("RGB", (9, 9), "red")])
GIF = _out.getvalue()


@pytest.mark.parametrize(
    "image",
    [
        WHOLE,
        {"bytes": WHOLE, "path": None},
        {"bytes": None, "path": "a.png"},
        "a.png",
        TEXT,
        f"data:image/png;base64,{TEXT}",
        base64.encodebytes(WHOLE).decode(),
        {"url": f"data:image/png;base64,{TEXT}"},
        {"image": "a.png"},  # as verl's own rows have it
        base64.urlsafe_b64encode(WHOLE).decode().rstrip("="),
        "file://%61.png",
    ],
    ids=lambda image: repr(image)[:20],
)
def test_each_form_gives_the_file(tmp_path, image):
    (tmp_path / "a.png").write_bytes(WHOLE)
    assert pictures.read(image, tmp_path, {}) == WHOLE


@pytest.mark.parametrize(
    ("image", "what"),
    [
        (None, "empty"),
        ({"bytes": None, "path": None}, "empty"),
        ("https://example.org/0.png", "address"),
        ({"url": "https://example.org/0.png"}, "address"),
        ("/home/maker/0.png", "No such file"),
        (TEXT[:400].swapcase() * 40, "iVBOR".swapcase()),
        (WHOLE[:60], "cannot be used"),
        (encoded(Image.effect_noise((99, 99), 60), "JPEG")[:-400], "truncated"),
        (b"RIFF\x24\x00\x00\x00WAVEfmt ", "cannot be used"),
        (b"<svg/>", "no PNG"),
        (STRIP, "900 x 4"),
        (encoded(Image.new("RGB", (4, 804))), "200:1"),
        (encoded(Image.new("I;16", (64, 48), 3000)), "I;16"),
        (encoded(Image.new("F", (64, 48)), "TIFF"), "mode is F"),
        (GIF, "2 frames"),
        (GIF[:80], "cannot be used"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_engines_cannot_show_is_named_and_never_printed_whole(tmp_path, image, what):
    error = mistake(lambda: pictures.read(image, tmp_path, {}))
    assert what in error.what
    assert len(error.what) < 200


def test_a_photo_stands_upright_and_stays_a_jpeg():
    lying, out = Image.Exif(), io.BytesIO()
    lying[pictures.ORIENTATION] = 6
    Image.new("RGB", (80, 40)).save(out, "JPEG", exif=lying)
    for data, form in ((pictures.usable(out.getvalue()), "JPEG"), (pictures.encoded(Image.open(out)), "PNG")):
        assert (pictures.open_image(data).size, pictures.open_image(data).format) == ((40, 80), form)


def test_a_jpeg_of_a_few_pixels_is_a_picture():
    small = encoded(Image.new("RGB", (5, 40)), "JPEG")
    assert pictures.usable(small) == small


def test_a_transparent_picture_is_the_same_in_training_and_evaluation():
    """verl lays RGBA on white, and drops the transparency of other modes; converted rows have none left."""
    drawing = Image.new("RGBA", (112, 112), (0, 0, 0, 0))
    ImageDraw.Draw(drawing).rectangle((20, 40, 90, 70), fill=(0, 0, 0, 255))
    for data in (encoded(drawing), encoded(drawing.convert("LA")), pictures.usable(encoded(drawing.convert("LA")))):
        trained = fetch_image({"image": Image.open(io.BytesIO(data))})
        assert Engine().shown(data).tobytes() == trained.tobytes()
    assert trained.getpixel((0, 0)) == (255, 255, 255)
    assert Engine(of_easyr1=True).shown(encoded(drawing)).getpixel((0, 0)) == (0, 0, 0), "as EasyR1"
