"""The columns that a table or a query has at this moment, with their types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import Code, SourceConfigurationError, did_you_mean
from azure_functions_db.sources.keyset import values
from azure_functions_db.sources.keyset.values import header_of
from azure_functions_db.sql.reflection import catalog_connection, refreshed, table_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import (
        ColumnElement,
        Connection,
        Dialect,
        Engine,
        FromClause,
        Index,
        PrimaryKeyConstraint,
        Table,
        TextClause,
        UniqueConstraint,
    )
    from sqlalchemy.types import TypeEngine

    from azure_functions_db.sources.keyset.definition import Definition


# Of a column in MySQL's wire protocol.
_ENUM_FLAG = 256
_SET_FLAG = 2048


@dataclass(frozen=True)
class Shape:
    """Something to select from, and the types of its columns."""

    relation: FromClause
    types: Mapping[str, TypeEngine[Any]]
    table: Table | None = None
    """The table as it was reflected; None for a query."""
    hidden: frozenset[str] = frozenset()
    """The columns that have to be named because a star does not bring them."""
    is_reflected: bool = True
    """Whether the database itself has described the table."""

    def column(self, name: str) -> ColumnElement[Any]:
        """Return the column to use in an expression."""
        return self.relation.c[name]

    def may_be_null(self, name: str) -> bool:
        """Tell whether the column can hold NULL; a query does not say."""
        return self.table is None or name not in self.table.columns or bool(self.table.columns[name].nullable)

    def is_unique(self, name: str, dialect: Dialect) -> bool:
        """Tell whether the database gives a value of this column to one row only."""
        column = None if self.table is None else self.table.columns.get(name)
        if column is None:
            return False
        if dialect.name == "mssql" and values.type_name(column.type) in {"ROWVERSION", "TIMESTAMP"}:
            return True
        return any(rule.columns.keys() == [name] for rule in _unique_rules(column.table))

    @property
    def tells_keys(self) -> bool:
        """Whether the database has said which columns tell rows apart; of a view or a query it does not."""
        return self.is_reflected and self.table is not None and bool(self.table.primary_key.columns)

    def is_key(self, names: Sequence[str], dialect: Dialect) -> bool:
        """Tell whether no two rows have the same values, or NULL alike, in these columns."""
        rules = [] if self.table is None else _unique_rules(self.table)
        return any(set(rule.columns.keys()) <= set(names) and not _repeats_null(rule, dialect) for rule in rules)

    def is_stamped(self, name: str, dialect: Dialect) -> bool:
        """Tell whether the late-commit watch lets the column's values ripen until a clock has passed them.

        Not so for a query or a view (which has no key), where a value may be rounded by any expression,
        nor where it is not the database who says what is there.
        """
        ripens = dialect.name in {"postgresql", "mysql", "mariadb"} and values.is_temporal(self.types[name])
        return ripens and self.tells_keys

    def require(self, names: Sequence[str]) -> None:
        """Refuse names that are no columns, with the ones that are."""
        unknown = [name for name in names if name not in self.types]
        if unknown:
            raise SourceConfigurationError(
                f"There is no column {', '.join(map(repr, unknown))}; there are {', '.join(map(repr, self.types))}"
                f"{did_you_mean(unknown[0], self.types)}",
                code=Code.COLUMN_MISSING,
            )


def table_shape(engine: Engine, name: str, schema: str | None, needed: Sequence[str]) -> Shape:
    """Return the table's shape as it is remembered; as it is now, where a needed column is not in that."""
    table = table_of(engine, name, schema)
    shape = _shape_of(engine, table)
    return shape if shape.types.keys() >= set(needed) else renewed_table_shape(engine, table)


def described_shape(table: Table) -> Shape:
    """Return the shape of a table as the user describes it."""
    return Shape(table, {column.name: column.type for column in table.columns}, table, is_reflected=False)


def renewed_table_shape(engine: Engine, table: Table) -> Shape:
    """Return the table's shape as it is now."""
    return _shape_of(engine, refreshed(engine, table))


def query_shape(connection: Connection, definition: Definition) -> Shape:
    """Return the query's shape, found by running it for no rows."""
    from sqlalchemy import column, select, text

    query = bound_text(f"{definition.query}\n", definition)
    empty = select(text("*")).select_from(query.columns().subquery("azfdb_source")).where(text("1 = 0"))
    with connection.execute(empty) as result:
        described = _described(connection, result.cursor)
    if connection.dialect.name == "sqlite":
        described |= _declared(connection, query)
    columns = [column(name, kind) for name, kind in described.items()]
    return Shape(query.columns(*columns).subquery("azfdb_source"), described)


def bound_text(sql: str, definition: Definition) -> TextClause:
    """Return a user's SQL with those of the parameters that it uses."""
    from sqlalchemy import bindparam, text

    from azure_functions_db.sources.keyset.definition import parameter_names

    names = sorted(parameter_names(sql))
    return text(sql).bindparams(*(bindparam(name, definition.parameters[name]) for name in names))


def _unique_rules(table: Table) -> list[PrimaryKeyConstraint | UniqueConstraint | Index]:
    """Return the rules that let a value appear once; one for a part of the rows does not count."""
    from sqlalchemy import PrimaryKeyConstraint, UniqueConstraint

    rules = [one for one in table.constraints if isinstance(one, PrimaryKeyConstraint | UniqueConstraint)]
    indexes = [index for index in table.indexes if index.unique and not is_partial(index)]
    indexes = [index for index in indexes if len(index.expressions) == len(index.columns)]
    # A table without a primary key is described with an empty one.
    return [rule for rule in [*rules, *indexes] if len(rule.columns)]


def _repeats_null(rule: PrimaryKeyConstraint | UniqueConstraint | Index, dialect: Dialect) -> bool:
    """Tell whether a rule lets NULL appear more than once; to SQL Server it is a value, and a primary key has none."""
    return dialect.name != "mssql" and any(column.nullable and not column.primary_key for column in rule.columns)


def is_partial(index: Index) -> bool:
    """Tell whether an index knows a part of the rows only."""
    return any(options.get("where") is not None for options in index.dialect_options.values())


def _shape_of(engine: Engine, table: Table) -> Shape:
    from sqlalchemy import column
    from sqlalchemy import table as lightweight

    # SQLAlchemy reads the columns of MySQL out of its DDL, with backticks inside of a name still doubled.
    types = {one.name.replace("``", "`"): one.type for one in table.columns}
    hidden = _hidden(engine, table)
    if all(name in table.columns for name in types):
        return Shape(table, types, table, hidden)
    named = lightweight(table.name, *(column(name, kind) for name, kind in types.items()), schema=table.schema)
    return Shape(named, types, table, hidden)


def _hidden(engine: Engine, table: Table) -> frozenset[str]:
    """Return the invisible columns, which only MySQL and MariaDB have."""
    if engine.dialect.name not in {"mysql", "mariadb"}:
        return frozenset()
    with catalog_connection(engine) as connection:
        name = engine.dialect.identifier_preparer.format_table(table)
        columns = connection.exec_driver_sql(f"SHOW COLUMNS FROM {name}").all()
    return frozenset(column.Field for column in columns if "INVISIBLE" in column.Extra.upper())


def _described(connection: Connection, cursor: Any) -> dict[str, TypeEngine[Any]]:
    header = header_of(connection.dialect, cursor.description)
    kind_of = _mysql_kind if connection.dialect.name in {"mysql", "mariadb"} else _kind
    driver_types, flags = _driver_types(connection.dialect.name), _flags(cursor, len(header.names))
    return {
        name: kind_of(driver_types, code, column, flag)
        for name, code, column, flag in zip(header.names, header.codes, cursor.description, flags, strict=True)
    }


def _kind(driver_types: dict[Any, Any], code: Any, column: Any, _flags: int) -> TypeEngine[Any]:
    from sqlalchemy import types

    kind = driver_types.get(code, types.NullType)()
    if isinstance(kind, types.DateTime) and hasattr(kind, "precision"):
        kind.precision = column[4]
    return kind  # type: ignore[no-any-return]  # by the table of types


def _mysql_kind(driver_types: dict[Any, Any], code: Any, column: Any, flags: int) -> TypeEngine[Any]:
    from sqlalchemy import types

    from azure_functions_db.sources.keyset.expressions import ENUM, SET

    if flags & _ENUM_FLAG:
        return ENUM()
    if flags & _SET_FLAG:
        return SET()
    kind = driver_types.get(code, types.NullType)()
    if hasattr(kind, "fsp") and column[5] in range(1, 7):
        kind.fsp = column[5]
    return kind  # type: ignore[no-any-return]  # by the table of types


def _flags(cursor: Any, count: int) -> Sequence[int]:
    """Return the flags that MySQL's drivers keep for each column, beside what is told to everybody."""
    flags = getattr(cursor, "description_flags", None)  # mysqlclient
    fields = getattr(getattr(cursor, "_result", None), "fields", None)  # PyMySQL
    return flags or [field.flags for field in fields or ()] or [0] * count


def _driver_types(dialect: str) -> dict[Any, Any]:
    """Return the types behind a driver's type codes, as far as positions and records depend on them."""
    from sqlalchemy import types
    from sqlalchemy.dialects import mysql, postgresql

    match dialect:
        case "postgresql":  # object identifiers of pg_type, fixed for ever
            return {
                16: types.Boolean, 17: types.LargeBinary, 20: types.BigInteger, 21: types.SmallInteger,
                23: types.Integer, 25: types.Text, 114: types.JSON, 700: types.REAL, 701: types.Double,
                1042: types.String, 1043: types.String, 1082: types.Date, 1083: types.Time, 1114: postgresql.TIMESTAMP,
                1184: _timestamptz, 1186: postgresql.INTERVAL, 1266: _timetz,
                1700: types.Numeric, 2950: types.Uuid, 3802: postgresql.JSONB,
            }  # fmt: skip
        case "mysql" | "mariadb":  # the field types of the wire protocol
            return {
                1: types.Integer, 2: types.Integer, 3: types.Integer, 4: mysql.FLOAT, 5: mysql.DOUBLE,
                7: mysql.TIMESTAMP, 8: types.BigInteger, 9: types.Integer, 10: types.Date, 11: mysql.TIME,
                12: mysql.DATETIME, 16: mysql.BIT, 245: types.JSON, 246: types.Numeric, 253: types.String,
                254: types.String,
            }  # fmt: skip
        case _:
            return {
                "TIMESTAMP": types.DateTime, "TIMESTAMP WITH TIME ZONE": _timestamptz, "DATE": types.Date,
                "INTEGER": types.Integer, "BIGINT": types.BigInteger, "DOUBLE": types.Double, "UUID": types.Uuid,
            }  # fmt: skip


def _timestamptz() -> TypeEngine[Any]:
    from sqlalchemy.dialects import postgresql

    return postgresql.TIMESTAMP(timezone=True)


def _timetz() -> TypeEngine[Any]:
    from sqlalchemy.dialects import postgresql

    return postgresql.TIME(timezone=True)


def _declared(connection: Connection, query: TextClause) -> dict[str, TypeEngine[Any]]:
    """Return the declared types of a SQLite query's columns: a view of it knows them, the driver does not."""
    from sqlalchemy import MetaData, Table, text

    nulls = query.bindparams(**dict.fromkeys(query.compile().params))
    plain = nulls.compile(dialect=connection.dialect, compile_kwargs={"literal_binds": True})
    connection.exec_driver_sql(f"CREATE TEMP VIEW azfdb_probe AS {plain}")
    try:
        view = Table("azfdb_probe", MetaData(), autoload_with=connection, resolve_fks=False)
        return {column.name: column.type for column in view.columns}
    finally:
        connection.execute(text("DROP VIEW temp.azfdb_probe"))
