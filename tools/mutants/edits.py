"""Every small edit that takes a guard away or turns it, found in the syntax tree of a module."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

_Function = ast.FunctionDef | ast.AsyncFunctionDef

_LONGEST = 110  # of what names a mutant in lists

_TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_BOUNDS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_COUNTED: dict[type[ast.operator], type[ast.operator]] = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv}
_OPPOSITE = {"min": "max", "max": "min", "any": "all", "all": "any"}

# Nobody is promised what these return.
_SHOWN_TO_DEVELOPERS = {"__repr__", "__str__"}


@dataclass(frozen=True)
class Edit:
    """One place in a tree and what stands there instead."""

    holder: ast.AST
    field: str
    place: int | None
    new: Sequence[ast.AST]
    before: str
    after: str
    line: int
    is_guard: bool = True
    """Whether something is let through, left out or kept going; a number, a sum or an argument is no guard."""

    def apply(self) -> None:
        """Change the tree for good."""
        if self.place is None:
            setattr(self.holder, self.field, self.new[0])
        else:
            getattr(self.holder, self.field)[self.place : self.place + 1] = list(self.new)


@dataclass(frozen=True)
class Mutant:
    """A module with one edit."""

    path: Path
    unit: str
    """The function, or the constant, by the name that it has in its module."""
    edit: Edit
    occurrence: int
    tree: ast.Module
    content: str
    """What the function was, hashed with the edit: a result holds as long as it is the same."""

    @property
    def key(self) -> str:
        """Return a name that stays when the function moves."""
        again = f" ({self.occurrence})" if self.occurrence > 1 else ""
        return f"{self.unit}: {self.edit.before} → {self.edit.after}{again}"

    @property
    def lines(self) -> range:
        """Return the lines of the statement that is edited, without the block below it: who runs none sees nothing."""
        around = (lines for node in ast.walk(self.tree) if self.edit.line in (lines := _own_lines(node)))
        return max(around, key=lambda lines: lines.start)


def mutants_of(path: Path) -> list[Mutant]:
    """Return all mutants of a module, in the order of its lines."""
    tree = ast.parse(path.read_text())
    found: list[Mutant] = []
    for unit, node in units_of(tree):
        texts: Counter[tuple[str, str]] = Counter()
        source = ast.dump(node)
        for edit in _edits_of_unit(node):
            texts[edit.before, edit.after] += 1
            occurrence = texts[edit.before, edit.after]
            content = sha256(f"{source}\0{edit.before}\0{edit.after}\0{occurrence}".encode()).hexdigest()
            found.append(Mutant(path, unit, edit, occurrence, tree, content))
    return found


def _own_lines(node: ast.AST) -> range:
    if not isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
        return range(0)
    first = node.pattern.lineno if isinstance(node, ast.match_case) else node.lineno
    block: list[ast.stmt] = getattr(node, "body", [])
    end = block[0].lineno if block else 1 + getattr(node, "end_lineno", first)
    return range(first, max(first + 1, end))


def units_of(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """Yield functions, methods and constants with their names."""
    yield from _units_in(tree.body, "")


def _units_in(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.stmt]]:
    for node in body:
        if isinstance(node, _Function):
            if node.name not in _SHOWN_TO_DEVELOPERS:
                yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            if not _is_protocol(node):
                yield from _units_in(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Assign) and not prefix and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node


def _is_protocol(node: ast.ClassDef) -> bool:
    return any("Protocol" in ast.unparse(base) for base in node.bases)


def _edits_of_unit(node: ast.stmt) -> Iterator[Edit]:
    if isinstance(node, _Function):
        yield from _edits_of_defaults(node.args)
        for edit in _edits_of_block(node, "body", is_tail=True):
            if node.name != "__init__" or not _is_left_unset(edit):
                yield edit
    elif isinstance(node, ast.Assign):
        yield from _inner(node, "value")


def _is_left_unset(edit: Edit) -> bool:
    """Tell whether an attribute would be missing: that is found by whoever asks for it, and proves nothing."""
    return edit.after == "pass" and edit.before.startswith("self.") and " = " in edit.before


def _edits_of_defaults(arguments: ast.arguments) -> Iterator[Edit]:
    for field in ("defaults", "kw_defaults"):
        for place, default in enumerate(getattr(arguments, field)):
            if isinstance(default, ast.Constant):
                yield from _of_constant(default, (arguments, field, place))


# Statements.


def _edits_of_block(holder: ast.AST, field: str, *, is_tail: bool = False) -> Iterator[Edit]:
    """Edit each statement; behind a block that is the tail of its function nothing follows."""
    block: list[ast.stmt] = getattr(holder, field)
    for place, statement in enumerate(block):
        if _is_for_types(statement):
            continue
        is_end = is_tail and place == len(block) - 1
        is_fixed_anyway = isinstance(holder, ast.If) and len(block) == 1  # `if False` says the same
        if not is_fixed_anyway and not (is_end and _is_plain_end(statement, holder)) and _can_go(statement):
            yield _edit((holder, field, place), [ast.Pass()], statement)
        yield from _edits_of_statement(statement, (holder, field, place), is_tail=is_end)


def _is_plain_end(statement: ast.stmt, holder: ast.AST) -> bool:
    """Tell whether a function ends here anyway, or has nothing but this to return."""
    if not isinstance(statement, ast.Return):
        return False
    return isinstance(holder, _Function) or statement.value is None or ast.unparse(statement.value) == "None"


def _is_for_types(statement: ast.stmt) -> bool:
    """Tell whether a statement only says what cannot be: mypy wants it, nobody can get there."""
    match statement:
        case ast.If(body=[ast.Raise(exc=ast.Call(func=ast.Name("AssertionError")))]):
            return True
        case (
            ast.Expr(ast.Call(func=ast.Name("assert_never")))
            | ast.Raise(exc=ast.Call(func=ast.Name("AssertionError" | "NotImplementedError")))
        ):
            return True
        case _:
            return False


def _can_go(statement: ast.stmt) -> bool:
    """Tell whether a statement can be left out and something still runs that looks right."""
    match statement:
        case ast.Raise() | ast.Return() | ast.Continue() | ast.Break() | ast.AugAssign() | ast.Delete() | ast.Assert():
            return True
        case ast.Expr(ast.Call() | ast.Await()):
            return True
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            return True
        case ast.AnnAssign(target=ast.Attribute() | ast.Subscript(), value=ast.expr()):
            return True
        case _:
            return False


def _edits_of_statement(statement: ast.stmt, where: _Where, *, is_tail: bool) -> Iterator[Edit]:
    match statement:
        case ast.Raise() | ast.Assert() | ast.Import() | ast.ImportFrom():
            return
        case ast.If():
            yield from _of_condition(statement, "test")
        case ast.While():
            yield _edit((statement, "test", None), [_negated(statement.test)], statement.test, "while ")
            yield from _operands(statement, "test")
        case ast.With() | ast.AsyncWith():
            yield from _of_with(statement, where)
        case ast.Try():
            yield from _of_handlers(statement, is_tail=is_tail and not statement.finalbody)
        case ast.Match():
            yield from _of_cases(statement, is_tail=is_tail)
        case ast.Return(value=ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not())):
            yield from _of_condition(statement, "value", "return ")
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield from _edits_of_block(statement, "body", is_tail=True)
            return
        case _:
            yield from _of_expressions(statement)
    follows = isinstance(statement, ast.For | ast.AsyncFor | ast.While | ast.Try)
    for field in ("body", "orelse", "finalbody"):
        if getattr(statement, field, None):
            yield from _edits_of_block(statement, field, is_tail=is_tail and not follows)


def _of_with(statement: ast.With | ast.AsyncWith, where: _Where) -> Iterator[Edit]:
    for place, item in enumerate(statement.items):
        if item.optional_vars is None:
            if len(statement.items) == 1:
                yield _edit(where, statement.body, item, "with ", after="(without)")
            else:
                yield _edit((statement, "items", place), [], item, "with ", after="(without)")
        yield from _inner(item, "context_expr")
    if len(statement.body) > 1 and all(item.optional_vars is None for item in statement.items):
        yield _of_first_step(statement, where)


def _of_first_step(statement: ast.With | ast.AsyncWith, where: _Where) -> Edit:
    """Let the first step of a block come before it: what is looked at before one's turn may be old by then."""
    first, *rest = statement.body
    inside = ast.copy_location(type(statement)(statement.items, rest), statement)
    entered = ", ".join(ast.unparse(item) for item in statement.items)
    return Edit(*where, [first, inside], _text(first), f"before with {entered}", first.lineno)


def _of_handlers(statement: ast.Try, *, is_tail: bool) -> Iterator[Edit]:
    for place, handler in enumerate(statement.handlers):
        caught = "" if handler.type is None else ast.unparse(handler.type)
        if not (len(handler.body) == 1 and isinstance(handler.body[0], ast.Raise)):
            again = ast.ExceptHandler(handler.type, handler.name, [ast.Raise()])
            where = (statement, "handlers", place)
            yield Edit(*where, [_placed(again, handler)], f"except {caught}", "raise", handler.lineno)
        yield from _edits_of_block(handler, "body", is_tail=is_tail)


def _of_cases(statement: ast.Match, *, is_tail: bool) -> Iterator[Edit]:
    for case in statement.cases:
        if case.guard is not None:
            yield from _of_condition(case, "guard")
        yield from _edits_of_block(case, "body", is_tail=is_tail)


def _of_expressions(node: ast.AST) -> Iterator[Edit]:
    for field in ("value", "values", "targets", "test", "iter", "subject"):
        if field == "targets" and not isinstance(node, ast.Delete):
            continue
        if isinstance(getattr(node, field, None), ast.AST | list):
            yield from _inner(node, field)


# Expressions.


def _of_condition(holder: ast.AST, field: str, prefix: str = "if ") -> Iterator[Edit]:
    test = getattr(holder, field)
    for fixed in (True, False):
        yield _edit((holder, field, None), [ast.Constant(fixed)], test, prefix)
    yield from _operands(holder, field)


def _operands(holder: ast.AST, field: str) -> Iterator[Edit]:
    yield from _of_fixed(getattr(holder, field), (holder, field, None))


def _of_fixed(test: ast.expr, where: _Where) -> Iterator[Edit]:
    """Edit inside a condition that another mutant fixes or drops: whoever misses that one misses its opposite."""
    match test:
        case ast.Compare(ops=[operator]) if not isinstance(operator, _BOUNDS):
            yield from _children(test)
        case ast.UnaryOp(op=ast.Not()):
            yield from _of_fixed(test.operand, (test, "operand", None))
        case _:
            yield from _of_expression(test, where)


def _inner(holder: ast.AST, field: str) -> Iterator[Edit]:
    content = getattr(holder, field)
    if isinstance(content, list):
        for place, node in enumerate(content):
            if isinstance(node, ast.AST):
                yield from _of_expression(node, (holder, field, place))
    elif isinstance(content, ast.AST):
        yield from _of_expression(content, (holder, field, None))


def _children(node: ast.AST) -> Iterator[Edit]:
    for field in node._fields:
        yield from _inner(node, field)


def _of_expression(node: ast.AST, where: _Where) -> Iterator[Edit]:
    match node:
        case ast.JoinedStr() | ast.Call(func=ast.Name("cast")):
            return  # texts; what only a type checker reads
        case ast.Constant():
            yield from _of_constant(node, where)
        case ast.BoolOp():
            yield from _of_operands(node, where)
            return
        case ast.Compare():
            yield from _of_comparison(node)
        case ast.UnaryOp(op=ast.Not()):
            yield _edit(where, [node.operand], node)
        case ast.IfExp():
            yield _edit(where, [node.body], node)
            yield _edit(where, [node.orelse], node)
        case ast.BinOp():
            yield from _of_arithmetic(node)
        case ast.Call():
            yield from _of_call(node)
        case ast.comprehension():
            for place, test in enumerate(node.ifs):
                yield _edit((node, "ifs", place), [ast.Constant(value=True)], test, "if ")
    yield from _children(node)


def _of_constant(node: ast.Constant, where: _Where) -> Iterator[Edit]:
    if isinstance(node.value, bool):
        yield _edit(where, [ast.Constant(not node.value)], node, is_guard=False)
    elif isinstance(node.value, int | float):
        yield _edit(where, [ast.Constant(node.value + 1)], node, is_guard=False)
        if isinstance(where[0], ast.Compare) and node.value > 0:
            yield _edit(where, [ast.Constant(node.value - 1)], node, is_guard=False)


def _of_operands(node: ast.BoolOp, where: _Where) -> Iterator[Edit]:
    for place in range(len(node.values)):
        rest = node.values[:place] + node.values[place + 1 :]
        left = rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
        yield _edit(where, [left], node)
        yield from _of_fixed(node.values[place], (node, "values", place))


def _of_comparison(node: ast.Compare) -> Iterator[Edit]:
    for place, operator in enumerate(node.ops):
        turned = _TURNED[type(operator)]()
        after = ast.Compare(node.left, [*node.ops[:place], turned, *node.ops[place + 1 :]], node.comparators)
        yield Edit(node, "ops", place, [turned], _text(node), _text(after), node.lineno)


def _of_arithmetic(node: ast.BinOp) -> Iterator[Edit]:
    is_text = any(isinstance(side, ast.JoinedStr | ast.List | ast.Tuple) or _is_text(side) for side in _sides(node))
    if type(node.op) in _COUNTED and not is_text:
        operator = _COUNTED[type(node.op)]()
        after = ast.BinOp(node.left, operator, node.right)
        yield Edit(node, "op", None, [operator], _text(node), _text(after), node.lineno, is_guard=False)


def _sides(node: ast.BinOp) -> tuple[ast.expr, ast.expr]:
    return node.left, node.right


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)


def _of_call(node: ast.Call) -> Iterator[Edit]:
    if isinstance(node.func, ast.Name) and node.func.id in _OPPOSITE:
        yield _edit((node, "func", None), [ast.Name(_OPPOSITE[node.func.id], ast.Load())], node.func)
    for place, keyword in enumerate(node.keywords):
        if keyword.arg is not None:
            called = f"{_text(node.func)}({keyword.arg}=…)"
            yield Edit(node, "keywords", place, [], called, "(without)", keyword.lineno, is_guard=False)


# Making them.

_Where = tuple[ast.AST, str, int | None]


def _negated(test: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), test)


def _edit(
    where: _Where, new: Sequence[ast.AST], old: ast.AST, prefix: str = "", *, after: str = "", is_guard: bool = True
) -> Edit:
    line: int = getattr(old.context_expr if isinstance(old, ast.withitem) else old, "lineno", 0)
    placed = [_placed(node, old) for node in new]
    return Edit(*where, placed, prefix + _text(old), after or prefix + _text(new[0]), line, is_guard)


def _placed(node: Any, old: ast.AST) -> Any:
    if not hasattr(node, "lineno") and hasattr(old, "lineno"):
        ast.copy_location(node, old)
    return ast.fix_missing_locations(node)


def _text(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
