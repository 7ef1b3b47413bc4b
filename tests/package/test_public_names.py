"""Public names: documented on the API page and importable."""

import ast
import importlib
import inspect
import pickle
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, ParamSpec, TypeVar, get_args

import pytest
from support.paths import ROOT

import lango_store
from lango_store import Conversation, Message, Store, errors

API = "\n".join(path.read_text() for path in sorted((ROOT / "docs/reference/api").glob("*.md")))
LISTED = re.findall(r"^::: (\S+)$", API, re.MULTILINE)
_ROW = re.search(r"^\| \*\*API\*\*: (.*?) \|", (ROOT / "docs/reference/stability.md").read_text(), re.MULTILINE)
assert _ROW is not None
PROMISED = set(re.findall(r"`(lango_store[.\w]*)`", _ROW[1]))
ADAPTERS = "lango_store.integrations"
CONTEXT = (  # excluded by the stability page
    "Conversation.__init__",
    "RunningTurn.__init__",
    "AsyncRunningTurn.__init__",
    "PendingCompaction.__init__",
    "Values.__init__",
    "Effect.__init__",
    "Chat.__init__",
)
MODULES = [importlib.import_module(name) for name in sorted(PROMISED - {ADAPTERS})]


def names_of(module: ModuleType) -> set[str]:
    """Return the public names of a module: its `__all__`, or else the names it defines."""
    exported = getattr(module, "__all__", None)
    defined = (name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__)
    return {name for name in (defined if exported is None else exported) if not name.startswith("_")}


def test_api_page_lists_the_names_of_the_stability_page() -> None:
    tables = "lango_store.tables"  # documented on a separate page
    owners = {name if name in PROMISED else name.rpartition(".")[0] for name in LISTED}
    assert {name for name in owners if not name.startswith(ADAPTERS)} == PROMISED - {tables, ADAPTERS}
    for module in MODULES:
        if module.__name__ not in (*LISTED, tables):
            members = [name for name in LISTED if name.rpartition(".")[0] == module.__name__ and name not in PROMISED]
            listed = {name.rpartition(".")[2] for name in members}
            assert listed == names_of(module) - (names_of(errors) if module is lango_store else set())


def test_api_page_lists_each_adapter() -> None:
    folder = ROOT / "lango_store" / "integrations"
    packages = {path.parent.name for path in folder.glob("*/__init__.py")} | {"nanobot"}
    listed = [name.removeprefix(f"{ADAPTERS}.").split(".") for name in LISTED if name.startswith(ADAPTERS)]
    assert {package for package, _ in listed} == packages
    for package in packages - {"nanobot"}:
        tree = ast.parse((folder / package / "__init__.py").read_text())
        (exported,) = (node.value for node in tree.body if isinstance(node, ast.Assign))
        assert {name for owner, name in listed if owner == package} == set(ast.literal_eval(exported))


def _members(kind: type) -> set[str]:
    """Return the names of the public members of a class, with those that rooms add to it."""
    own = [each for each in kind.__mro__ if each.__module__.startswith("lango_store")]
    return {name for each in own for name in vars(each) if name[0] != "_"}


def functions(owner: Any) -> Iterator[Callable[..., Any]]:
    """Yield the public functions of a module or the public methods of a class."""
    names = names_of(owner) if isinstance(owner, ModuleType) else _members(owner)
    for name in sorted(names | {"__init__"} & vars(owner).keys()):
        value = getattr(inspect.getattr_static(owner, name), "__func__", inspect.getattr_static(owner, name))
        value = value.fget if isinstance(value, property) else value
        value = inspect.unwrap(value) if callable(value) else value
        if inspect.isfunction(value):
            yield value


def types_in(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """Yield the names and the values of our types in the annotations of a function."""
    signature = inspect.signature(function)
    annotations = [signature.return_annotation, *(each.annotation for each in signature.parameters.values())]
    while annotations:
        annotation = annotations.pop()
        annotations += get_args(annotation)
        if isinstance(annotation, str):
            for node in ast.walk(ast.parse(annotation)):
                if isinstance(node, ast.Name):
                    value = vars(inspect.getmodule(function)).get(node.id)
                    module = getattr(value, "__module__", "lango_store")  # an alias has none
                    if (
                        value is not None
                        and not isinstance(value, ModuleType | ParamSpec | TypeVar)
                        and module != "typing"
                    ):
                        yield node.id, value
        elif isinstance(annotation, type):
            generic = getattr(annotation, "__pydantic_generic_metadata__", {})
            if generic.get("origin"):  # `Page[SessionInfo]` is a class, for which `get_args` returns nothing
                annotations += [generic["origin"], *generic["args"]]
            else:
                yield annotation.__name__, annotation


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_types_of_public_functions_can_be_imported(module: ModuleType) -> None:
    classes = [value for name in names_of(module) if isinstance(value := getattr(module, name), type)]
    types_by_use = {
        (name, function.__qualname__): value
        for owner in (module, *classes)
        for function in functions(owner)
        for name, value in types_in(function)
        if getattr(value, "__module__", "lango_store").startswith(("lango_store", "typing"))
    }
    missing = {
        (name, user)
        for (name, user), value in types_by_use.items()
        if not any(getattr(each, name, None) is value for each in MODULES) and user not in CONTEXT
    }
    assert missing == set()


def test_public_classes_report_a_public_module() -> None:
    kinds = [value for name in lango_store.__all__ if isinstance(value := getattr(lango_store, name), type)]
    modules = {"lango_store.errors" if issubclass(kind, BaseException) else "lango_store" for kind in kinds}
    assert {kind.__module__ for kind in kinds} == modules
    assert b"lango_store._values" not in pickle.dumps(Message.user("Hello"))


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_classes_of_a_public_module_report_no_private_module(module: ModuleType) -> None:
    kinds = [value for name in names_of(module) if isinstance(value := getattr(module, name), type)]
    assert [kind for kind in kinds if "._" in kind.__module__] == []


def test_public_value_can_be_pickled_and_subclassed() -> None:
    class Tagged(Message):
        tag: str = "new"

    message = Message.user("Hello", tokens=1)
    assert pickle.loads(pickle.dumps(message)) == message
    tagged = Tagged(role="user", content={"a": 1}, tag="old")
    assert (tagged.tag, tagged.content, tagged.role) == ("old", {"a": 1}, "user")


@pytest.mark.parametrize(("kind", "members"), [(Store, 43), (Conversation, 38)])
def test_facade_has_few_members(kind: type, members: int) -> None:
    assert len([name for name in dir(kind) if not name.startswith("_")]) <= members


def test_errors_of_one_kind_share_a_base() -> None:
    defined = [value for value in vars(errors).values() if isinstance(value, type)]
    missing = {kind for kind in defined if kind.__name__.endswith("NotFound")}
    assert all(issubclass(kind, errors.NotFound) for kind in missing)
    assert issubclass(errors.NotFound, LookupError)
    assert {*errors.InProgress.__subclasses__()} == {errors.TurnInProgress, errors.CallInProgress}
