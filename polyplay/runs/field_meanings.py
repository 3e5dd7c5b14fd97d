"""What the source of a dataclass says of its fields: for the command's help, and for the documentation."""

from __future__ import annotations

import ast
import inspect
import textwrap


def meanings(cls: type) -> dict[str, str]:
    """Field → what it is: the string below it, or the comment on its line, in one line."""
    bases = [base for base in reversed(cls.__mro__) if vars(base).get("__annotations__")]
    return {name: said for base in bases for name, said in _own(base).items()}


def _own(cls: type) -> dict[str, str]:
    source = textwrap.dedent(inspect.getsource(cls))
    lines, found = source.splitlines(), {}
    (tree,) = ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    for at, node in enumerate(tree.body):
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        below = tree.body[at + 1] if at + 1 < len(tree.body) else None
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            text = str(below.value.value)
        else:
            text = " ".join(line.partition("  # ")[2] for line in lines[node.lineno - 1 : node.end_lineno])
        found[node.target.id] = " ".join(text.split())
    return found
