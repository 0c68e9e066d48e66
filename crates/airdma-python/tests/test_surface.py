"""What the package offers, its type stubs, and its documentation say the same."""

import ast
import importlib.util
import inspect
import unittest
from pathlib import Path

import airdma
from airdma import _airdma

STUBS = Path(airdma.__file__).with_name("_airdma.pyi")
OF_EVERY_CLASS = set(dir(object)) | {"__module__", "__doc__", "__class_getitem__", "__release_buffer__", "__hash__"}
NOT_TO_BE_CALLED = {"__lt__", "__le__", "__gt__", "__ge__", "__ne__", "__delitem__"}
"""Python makes these beside others."""


def stubs() -> dict[str, dict[str, ast.AST]]:
    """Class -> name -> its declaration."""
    tree = ast.parse(STUBS.read_text(encoding="utf-8"))
    classes = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            names = {it.name: it for it in node.body if isinstance(it, (ast.FunctionDef, ast.AsyncFunctionDef))}
            names |= {it.target.id: it for it in node.body if isinstance(it, ast.AnnAssign)}
            classes[node.name] = names
    return classes


class Surface(unittest.TestCase):
    def test_the_stubs_have_the_names_of_the_module(self) -> None:
        module = {name for name, it in vars(_airdma).items() if inspect.isclass(it)}
        self.assertEqual(set(stubs()), module)
        for name, declared in stubs().items():
            there = set(vars(getattr(_airdma, name))) - OF_EVERY_CLASS - NOT_TO_BE_CALLED
            told = set(declared) - OF_EVERY_CLASS
            # Since Python 3.12 buffers are a method that Python sees.
            self.assertEqual(told - {"__buffer__"}, there - {"__buffer__"}, name)

    def test_the_stubs_have_the_parameters_of_the_module(self) -> None:
        for name, declared in stubs().items():
            for method, it in declared.items():
                if method.startswith("__") or not isinstance(it, ast.FunctionDef):
                    continue
                there = getattr(_airdma, name).__dict__[method]
                if inspect.isgetsetdescriptor(there):
                    continue
                # From the class, so that a static method is a function.
                signature = inspect.signature(getattr(getattr(_airdma, name), method))
                told = [argument.arg for argument in (*it.args.posonlyargs, *it.args.args, *it.args.kwonlyargs)]
                self.assertEqual(told, list(signature.parameters), f"{name}.{method}")

    def test_everything_that_is_offered_is_documented(self) -> None:
        for name in airdma.__all__:
            it = getattr(airdma, name)
            self.assertTrue(inspect.getdoc(it), name)
            if it.__module__ in ("airdma", "airdma._airdma") and name in stubs():
                for method in stubs()[name]:
                    if not method.startswith("_"):
                        self.assertTrue(getattr(it, method).__doc__, f"{name}.{method}")

    def test_the_pieces_of_code_in_the_book_run(self) -> None:
        book = Path(__file__).resolve().parents[3] / "docs" / "api.md"
        pieces = book.read_text(encoding="utf-8").split("```python\n")[1:]
        self.assertGreaterEqual(len(pieces), 3)
        for piece in pieces:
            code = piece.partition("```")[0]
            if "import numpy" in code and not importlib.util.find_spec("numpy"):
                continue
            with self.subTest(code):
                exec(compile(code, str(book), "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    unittest.main()
