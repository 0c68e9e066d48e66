"""The examples as programs of their own."""

import contextlib
import importlib.util
import os
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib
from collections.abc import Iterator
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
PATIENCE_S = 60


@contextlib.contextmanager
def listening(name: str, *arguments: str) -> Iterator[list[str]]:
    """An example that listens already; at the end, what it has printed."""
    program = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    output: list[str] = []
    try:
        line = process.stderr.readline()
        assert line.startswith("listening"), line + process.stderr.read()
        yield output
        said, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, errors
        output += said.splitlines()
    finally:
        process.kill()
        process.communicate()


def said(name: str, *arguments: str, env: dict[str, str] | None = None) -> list[str]:
    program = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]
    result = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE_S, env=env)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


class Examples(unittest.TestCase):
    def test_hello_is_answered_with_welcome(self) -> None:
        with listening("hello", "listen", "127.0.0.1") as output:
            self.assertEqual(said("hello", "greet", "127.0.0.1"), ["127.0.0.1 says: welcome"])
        self.assertEqual(output, ["127.0.0.1 says: hello"])

    def test_ping_pong_measures(self) -> None:
        with listening("ping_pong", "listen", "127.0.0.1"):
            lines = said("ping_pong", "measure", "127.0.0.1", "512", "200")
        numbers = [float(word) for word in lines[1].split()]
        self.assertEqual(numbers[:2], [512, 200])
        self.assertGreater(numbers[2], 0)
        self.assertEqual(numbers[2:], sorted(numbers[2:]))

    def test_bandwidth_measures(self) -> None:
        for verb in ("write", "send"):
            with listening("bandwidth", "listen", "127.0.0.1"):
                lines = said("bandwidth", verb, "127.0.0.1", "10000", "1")
            size, count, gbps = (float(word) for word in lines[1].split())
            self.assertEqual(size, 10000)
            self.assertGreaterEqual(count, 16)
            self.assertGreater(gbps, 0)

    def test_several_programs_add_to_one_counter(self) -> None:
        with listening("counter", "own", "127.0.0.1", "2") as output:
            program = [sys.executable, str(EXAMPLES / "counter.py"), "add", "127.0.0.1", "150"]
            with subprocess.Popen(program) as first:
                said("counter", "add", "127.0.0.1", "77")
            self.assertEqual(first.returncode, 0)
        self.assertEqual(output, ["227"])

    @unittest.skipUnless(importlib.util.find_spec("numpy"), "no numpy")
    def test_a_stream_of_arrays_arrives_as_it_was_sent(self) -> None:
        with listening("stream", "listen", "127.0.0.1") as output:
            sent = said("stream", "send", "127.0.0.1", "12")
        self.assertEqual(len(sent), 12)
        self.assertEqual(len(set(sent)), 12)
        self.assertEqual(output, sent)

    def test_frames_are_shown_with_their_holes(self) -> None:
        for drops in ("0%", "10%"):
            with tempfile.TemporaryDirectory() as folder:
                with listening("frame", "show", "127.0.0.1", folder) as output:
                    environment = os.environ | {"AIRDMA_IMPAIR": f"drop={drops},seed=2"}
                    self.assertEqual(said("frame", "film", "127.0.0.1", "3", env=environment), ["3 frames filmed"])
                self.assertEqual(len(output), 3, output)
                header, grey = b"P6 160 120 255\n", b"\x80" * 300
                holes = 0
                for number in range(3):
                    picture = Path(folder, f"{number}.ppm").read_bytes()
                    self.assertTrue(picture.startswith(header))
                    pixels = picture[len(header) :]
                    self.assertEqual(len(pixels), 160 * 120 * 3)
                    # Where the picture is not grey, it is what was filmed.
                    for at in range(0, len(pixels), 300):
                        x, y = at // 3 % 160, at // 480
                        in_hole = 128 in pixels[at : at + 2] or grey[:3] in pixels[at : at + 300]
                        if not in_hole and not (50 <= y < 70):
                            self.assertEqual(pixels[at : at + 2], bytes((x * 255 // 160, y * 255 // 120)))
                    holes += grey in pixels
                self.assertEqual(holes > 0, drops != "0%", output)

    @unittest.skipUnless(importlib.util.find_spec("numpy"), "no numpy")
    def test_cameras_are_shown_as_tiles(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "tiles.png")
            with listening("tiles", "show", "127.0.0.1", str(file)) as output:
                self.assertEqual(said("tiles", "film", "127.0.0.1", "5"), ["60 frames filmed"])
            self.assertEqual(output, ["60 frames of 12 cameras"])
            picture = file.read_bytes()
        self.assertEqual(picture[:8], b"\x89PNG\r\n\x1a\n")
        width, height = struct.unpack(">II", picture[16:24])
        self.assertEqual((width, height), (4 * 160, 3 * 120))
        length = struct.unpack(">I", picture[33:37])[0]
        rows = zlib.decompress(picture[41 : 41 + length])
        stride = 1 + 3 * width
        for camera in range(12):
            x, y = camera % 4 * 160, camera // 4 * 120
            at = y * stride + 1 + 3 * x
            colour = (camera * 20, 255 - camera * 20, 40 * (camera % 6))
            self.assertEqual(tuple(rows[at : at + 3]), colour, camera)
            # The bar of the fifth frame.
            self.assertEqual(rows[at + 3 * 32 : at + 3 * 40], b"\xff" * 24, camera)

    def test_tasks_answer_many_at_once(self) -> None:
        words = [f"word{number}" for number in range(8)]
        with listening("tasks", "serve", "127.0.0.1", "8"):
            self.assertEqual(said("tasks", "ask", "127.0.0.1", *words), [" ".join(words).upper()])

    def test_wrong_arguments_are_told(self) -> None:
        for example in ("hello", "ping_pong", "bandwidth", "counter", "tasks", "frame"):
            program = [sys.executable, str(EXAMPLES / f"{example}.py"), "wrong"]
            result = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE_S)
            self.assertEqual(result.returncode, 1)
            self.assertIn("usage:", result.stderr)


if __name__ == "__main__":
    unittest.main()
