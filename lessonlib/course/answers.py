"""Reference answers as the text of exercise cells, with nbgrader's solution marks around what learners write."""

from __future__ import annotations

import ast
from importlib import import_module

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"

Definition = ast.FunctionDef | ast.ClassDef


def exercise_cell(module: str, names: list[str]) -> str:
    """The text of an exercise cell: the named definitions of a reference module, their bodies marked as solution.

    Signatures and docstrings stay outside the marks: they are the learner's specification. Private helpers that
    a definition uses, and private methods of a class, go inside the marks.

    Args:
        module: the dotted name of a module, such as "lessonlib.reference".
        names: public functions or classes that it exports.

    Raises:
        ValueError: the module has no such name.
    """
    return "\n\n\n".join(_marked(_Source.of(module, name), name) for name in names)


def folded_code(cell: str) -> str:
    """The same code without marks and docstrings, as a learner would write it.

    Args:
        cell: the text of an exercise cell.
    """
    text = "\n".join(line for line in cell.splitlines() if line.strip() not in (BEGIN, END))
    lines = text.splitlines()
    for node in reversed(list(ast.walk(ast.parse(text)))):
        if isinstance(node, Definition) and ast.get_docstring(node) is not None and len(node.body) > 1:
            doc = node.body[0]
            assert doc.end_lineno is not None
            for number in range(doc.lineno, doc.end_lineno + 1):
                lines[number - 1] = "\0"
    kept = [line for line in lines if line != "\0"]
    return "\n".join(line for i, line in enumerate(kept) if line or not _after_header(kept, i))


def _after_header(lines: list[str], i: int) -> bool:
    """Whether a blank line only separated a docstring from the body."""
    return i > 0 and lines[i - 1].endswith(":")


class _Source:
    """The text of one module, by definition."""

    def __init__(self, path: str) -> None:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        self.lines = text.splitlines()
        self.nodes: dict[str, ast.stmt] = {}
        for node in ast.parse(text).body:
            if isinstance(node, Definition):
                self.nodes[node.name] = node
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.nodes[node.targets[0].id] = node

    @classmethod
    def of(cls, module: str, name: str) -> _Source:
        try:
            home = import_module(getattr(import_module(module), name).__module__)
        except AttributeError:
            raise ValueError(f"{module} has no {name!r}: export it there, or correct the exercise cell") from None
        assert home.__file__ is not None
        return cls(home.__file__)

    def text(self, node: ast.stmt) -> list[str]:
        assert node.end_lineno is not None
        decorators = getattr(node, "decorator_list", [])
        return self.lines[min([node.lineno, *(d.lineno for d in decorators)]) - 1 : node.end_lineno]

    def private_uses(self, node: ast.AST) -> list[str]:
        """Private module-level names that a node needs, directly or through others, in the module's order."""
        found: set[str] = set()
        open_nodes = [node]
        while open_nodes:
            for used in ast.walk(open_nodes.pop()):
                if isinstance(used, ast.Name) and used.id.startswith("_") and used.id in self.nodes:
                    if used.id not in found:
                        open_nodes.append(self.nodes[used.id])
                    found.add(used.id)
        return [name for name in self.nodes if name in found]


def _marked(source: _Source, name: str) -> str:
    node = source.nodes.get(name)
    if not isinstance(node, Definition):
        raise ValueError(f"{name!r} is not a function or class of its module")
    lines = _marked_class(source, node) if isinstance(node, ast.ClassDef) else _marked_function(source, node)
    helpers = source.private_uses(node)
    if helpers:
        last_end = len(lines) - 1 - lines[::-1].index(next(line for line in lines[::-1] if line.strip() == END))
        extra: list[str] = []
        for helper in helpers:
            extra += ["", "", *source.text(source.nodes[helper])]
        lines[last_end:last_end] = extra
    return "\n".join(lines)


def _marked_function(source: _Source, node: ast.FunctionDef, swallowed: list[ast.stmt] | None = None) -> list[str]:
    """One function with marks round its body, and round the private methods that follow it in a class."""
    has_doc = ast.get_docstring(node) is not None
    header_end = node.body[0].end_lineno if has_doc else node.body[0].lineno - 1
    assert header_end is not None
    assert node.end_lineno is not None
    start = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    indent = " " * node.body[0].col_offset
    body = source.lines[header_end : node.end_lineno]
    for follower in swallowed or []:
        body += ["", *source.text(follower)]
    return [*source.lines[start - 1 : header_end], indent + BEGIN, *body, indent + END]


def _marked_class(source: _Source, node: ast.ClassDef) -> list[str]:
    first = node.body[1] if ast.get_docstring(node) is not None else node.body[0]
    methods = [m for m in node.body if isinstance(m, ast.FunctionDef)]
    lines = source.lines[min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1 : first.lineno - 1]
    lines += [line for m in node.body if m not in methods and m is not node.body[0] for line in source.text(m)]
    groups: list[tuple[ast.FunctionDef, list[ast.stmt]]] = []
    for method in methods:
        private = method.name.startswith("_") and not method.name.startswith("__")
        if private and groups:
            groups[-1][1].append(method)
        else:
            groups.append((method, []))
    for i, (method, private_methods) in enumerate(groups):
        lines += ([""] if i else []) + _marked_function(source, method, private_methods)
    return lines
