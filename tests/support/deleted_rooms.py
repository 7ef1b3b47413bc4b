"""Delete a room from a copy of the project, with the rooms that build on it and its lines in the composition."""

import ast
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from support import rooms
from support.paths import PACKAGE

from lango_store._rooms.composition import ROOMS

COMPOSITION: Final = sorted(rooms.COMPOSITION - {"_rooms/__init__.py"})


def with_dependents(room: str) -> list[str]:
    """Return a room and the rooms that build on it."""
    above = [other for other, below in ROOMS.items() if room in below]
    return list(dict.fromkeys([room, *(each for other in above for each in with_dependents(other))]))


def delete(project: Path, *named: str) -> list[str]:
    """Delete rooms and those that build on them from a copy of the project; return their names."""
    deleted = list(dict.fromkeys(each for room in named for each in with_dependents(room)))
    gone = {name for each in deleted for name in rooms.names_of(each)}
    paths = [PACKAGE / rooms.path_of(each) for each in deleted]
    modules = tuple(f"lango_store._rooms.{each}" for each in deleted)
    for path in [project / "lango_store" / path.relative_to(PACKAGE) for path in paths]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    members = {name for path in paths for name in _added_members(path)}
    files = [project / "lango_store" / name for name in COMPOSITION]
    listing = project / "lango_store" / "_rooms" / "composition.py"
    for each in deleted:
        listing.write_text(re.sub(rf'^    "{each}": .*\n', "", listing.read_text(), flags=re.MULTILINE))
    changed = True
    while changed:
        changed = False
        for file in files:
            text = file.read_text()
            if (shorter := _Deletion(text, modules, gone, members).run()) != text:
                file.write_text(shorter)
                changed = True
    return deleted


_ASSIGNMENTS: Final = (ast.AugAssign, ast.AnnAssign, ast.Assign)
_FACADES: Final = {
    "InStore": "Store",
    "InConversation": "Conversation",
    "InTurn": "RunningTurn",
    "InSession": "Session",
}


def _added_members(path: Path) -> Iterator[str]:
    """Yield what a room adds to the facades, such as `Conversation.fork`."""
    for file in [path] if path.is_file() else path.rglob("*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name in _FACADES:
                named = [each.name for each in node.body if isinstance(each, ast.FunctionDef)]
                yield from (f"{_FACADES[node.name]}.{name}" for name in named)


class _Deletion:
    """One pass over the source of a file of the composition."""

    def __init__(self, text: str, modules: tuple[str, ...], gone: set[str], members: set[str]) -> None:
        self._text, self._tree, self._members = text, ast.parse(text), members
        self._starts = [0]
        for line in text.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line.encode()))
        self._modules = modules
        self._all_gone = gone
        self._gone = gone | {each.asname or each.name for node in ast.walk(self._tree) for each in self._aliases(node)}
        self._cuts: list[tuple[int, int]] = []

    def _aliases(self, node: ast.AST) -> list[ast.alias]:
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            return []
        return [
            each for each in node.names if each.name != "*" and f"{node.module}.{each.name}".startswith(self._modules)
        ]

    def run(self) -> str:
        """Return the text without what names a deleted room."""
        self._delete_from(self._tree.body)
        data = self._text.encode()
        for start, end in sorted(self._cuts, reverse=True):
            data = data[:start] + data[end:]
        return data.decode()

    def _delete_from(self, body: list[ast.stmt], kind: str = "") -> None:
        for node in body:
            if isinstance(node, ast.ImportFrom):
                self._delete_items(node, node.names, [each.asname or each.name for each in node.names], node.module)
            elif (
                isinstance(node, ast.ClassDef) and node.bases and all(map(self._is_gone, map(ast.unparse, node.bases)))
            ):
                self._all_gone.add(node.name)
                self._cut_lines(node)
            elif isinstance(node, ast.ClassDef):
                self._delete_items(node, node.bases, [ast.unparse(each) for each in node.bases], None)
                self._delete_from(node.body, node.name)
            elif isinstance(node, _ASSIGNMENTS) and isinstance(node.value, ast.List):
                values = node.value.elts
                names = [str(each.value) if isinstance(each, ast.Constant) else ast.unparse(each) for each in values]
                self._delete_items(node, values, names, None)
            elif isinstance(node, ast.FunctionDef) and (parts := self._parts(node)):
                for part in parts:
                    self._cut_lines(part) if isinstance(part, ast.stmt) else self._delete_arguments(part)
            elif self._names(node):
                if isinstance(node, ast.FunctionDef):
                    self._members.add(f"{kind}.{node.name}")
                self._cut_lines(node)

    def _parts(self, function: ast.FunctionDef) -> list[ast.stmt | ast.Call]:
        """Return the parts of a function without which nothing else in it names the room; [] if there are none.

        A part is a statement, which is a call or an `if` without `else`, next to other statements; or a call that
        passes something of the room as one of several arguments.
        """
        nodes = [*ast.walk(function)]
        bodies = [getattr(each, "body", None) for each in nodes]
        alone = [body[0] for body in bodies if isinstance(body, list) and len(body) == 1]
        parts: list[ast.stmt | ast.Call] = []
        covered: set[ast.AST] = set()

        def names(node: ast.AST) -> bool:
            return any(self._names_itself(each) for each in {*ast.walk(node)} - covered)

        for kind in (ast.Expr, ast.If, ast.Call):
            for node in (each for each in nodes if isinstance(each, kind) and names(each)):
                passed: Sequence[ast.AST] = [node]
                if isinstance(node, ast.Call):
                    passed = [each for each in self._arguments(node) if names(each)]
                    is_part = len(self._arguments(node)) > 1 and not names(node.func)
                else:
                    is_part = node not in alone and not getattr(node, "orelse", None)
                if is_part:
                    parts.append(node)
                    covered |= {inner for each in passed for inner in ast.walk(each)}
        return [] if names(function) else parts

    def _arguments(self, call: ast.Call) -> list[ast.expr | ast.keyword]:
        return [*call.args, *call.keywords]

    def _delete_arguments(self, call: ast.Call) -> None:
        items = self._arguments(call)
        self._delete_items(call, items, [self._first_name(each) for each in items], None)

    def _first_name(self, node: ast.AST) -> str:
        """Return a name of the room in an expression, if it has one."""
        return next((each.id for each in ast.walk(node) if isinstance(each, ast.Name) and each.id in self._gone), "")

    def _names(self, node: ast.AST) -> bool:
        return any(map(self._names_itself, ast.walk(node)))

    def _names_itself(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Name):
            return isinstance(node.ctx, ast.Load) and node.id in self._gone
        return isinstance(node, ast.Attribute) and ast.unparse(node) in self._members

    def _is_gone(self, name: str, module: str | None = None) -> bool:
        return name.split(".")[0] in self._gone or bool(module and module.startswith(self._modules))

    def _are_gone(self, nodes: list[ast.expr]) -> bool:
        return all(self._is_gone(ast.unparse(each)) for each in nodes)

    def _delete_items(
        self, owner: ast.AST, items: Sequence[ast.expr | ast.keyword | ast.alias], names: list[str], module: str | None
    ) -> None:
        kept = [not self._is_gone(name, module) for name in names]
        if all(kept):
            return
        if isinstance(owner, (ast.ImportFrom, *_ASSIGNMENTS)) and not any(kept):
            self._cut_lines(owner)
            return
        last_kept = max((n for n, keep in enumerate(kept) if keep), default=None)
        for n, item in enumerate(items):
            if kept[n]:
                continue
            # with the comma after the item or, for those at the end, with the comma before it
            if last_kept is None or n < last_kept:
                start = self._offset(item)
                end = self._offset(items[n + 1]) if n + 1 < len(items) else self._end(item)
            else:
                start, end = self._end(items[n - 1]), self._end(item)
            self._cuts.append((start, end))

    def _offset(self, node: ast.expr | ast.keyword | ast.alias | ast.stmt) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr | ast.keyword | ast.alias | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._starts[node.end_lineno - 1] + node.end_col_offset

    def _cut_lines(self, node: ast.AST) -> None:
        assert isinstance(node, ast.stmt)
        assert node.end_lineno is not None
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(each.lineno for each in decorators)])
        self._cuts.append((self._starts[first - 1], self._starts[node.end_lineno]))
