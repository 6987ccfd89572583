"""The columns that a table or a query has at this moment, with their types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from azure_functions_db.core.errors import SourceConfigurationError
from azure_functions_db.core.tables import refreshed, table_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import ColumnElement, Connection, Dialect, Engine, FromClause, Table, TextClause
    from sqlalchemy.types import TypeEngine

    from azure_functions_db.adapter.definition import Definition


class Header(NamedTuple):
    """The column names of a result, and the driver's type code of each."""

    names: tuple[str, ...]
    codes: tuple[Any, ...]


@dataclass(frozen=True)
class Shape:
    """Something to select from, and the types of its columns."""

    relation: FromClause
    types: Mapping[str, TypeEngine[Any]]
    table: Table | None = None
    """The table as it was reflected; None for a query."""

    def column(self, name: str) -> ColumnElement[Any]:
        """Return the column to use in an expression."""
        return self.relation.c[name]

    def may_be_null(self, name: str) -> bool:
        """Tell whether the column can hold NULL; a query does not say."""
        return self.table is None or name not in self.table.columns or bool(self.table.columns[name].nullable)

    def require(self, names: Sequence[str]) -> None:
        """Refuse names that are no columns, with the ones that are."""
        unknown = [name for name in names if name not in self.types]
        if unknown:
            raise SourceConfigurationError(
                f"There is no column {', '.join(map(repr, unknown))}; there are {', '.join(map(repr, self.types))}"
            )


def table_shape(engine: Engine, name: str, schema: str | None) -> Shape:
    """Return the table's shape as it is remembered."""
    return _shape_of(table_of(engine, name, schema))


def renewed_table_shape(engine: Engine, known: Table) -> Shape:
    """Return the table's shape as it is now."""
    return _shape_of(refreshed(engine, known))


def query_shape(connection: Connection, definition: Definition) -> Shape:
    """Return the query's shape, found by running it for no rows."""
    from sqlalchemy import column, select, text

    query = bound_text(f"{definition.query}\n", definition)
    empty = select(text("*")).select_from(query.columns().subquery("azfdb_source")).where(text("1 = 0"))
    with connection.execute(empty) as result:
        described = _described(connection, result.cursor.description)
    if connection.dialect.name == "sqlite":
        described |= _declared(connection, query)
    columns = [column(name, kind) for name, kind in described.items()]
    return Shape(query.columns(*columns).subquery("azfdb_source"), described)


def bound_text(sql: str, definition: Definition) -> TextClause:
    """Return a user's SQL with those of the parameters that it uses."""
    from sqlalchemy import bindparam, text

    from azure_functions_db.adapter.sqltext import parameter_names

    wanted = sorted(parameter_names(sql))
    return text(sql).bindparams(*(bindparam(name, definition.parameters[name]) for name in wanted))


def header_of(dialect: Dialect, description: Sequence[Any]) -> Header:
    """Return a result's header with the names as the dialect writes them; a name that comes twice is refused."""
    names = tuple(column[0] for column in description)
    if dialect.requires_name_normalize:
        names = tuple(map(dialect.normalize_name, names))
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise SourceConfigurationError(f"The query has several columns named {', '.join(map(repr, twice))}")
    return Header(names, tuple(_type_code(column[1]) for column in description))


def _shape_of(table: Table) -> Shape:
    from sqlalchemy import column
    from sqlalchemy import table as lightweight

    # SQLAlchemy reads the columns of MySQL out of its DDL, with backticks inside of a name still doubled.
    types = {one.name.replace("``", "`"): one.type for one in table.columns}
    if all(name in table.columns for name in types):
        return Shape(table, types, table)
    named = lightweight(table.name, *(column(name, kind) for name, kind in types.items()), schema=table.schema)
    return Shape(named, types, table)


def _described(connection: Connection, description: Sequence[Any]) -> dict[str, TypeEngine[Any]]:
    from sqlalchemy import types

    known = _driver_types(connection.dialect.name)
    header = header_of(connection.dialect, description)
    kinds = (known.get(code, types.NullType)() for code in header.codes)
    told = (_with_digits(kind, column) for kind, column in zip(kinds, description, strict=True))
    return dict(zip(header.names, told, strict=True))


def _with_digits(kind: TypeEngine[Any], column: Sequence[Any]) -> TypeEngine[Any]:
    """Return a type of times with the digits of a second that the driver tells: a cursor ripens by them."""
    from sqlalchemy.dialects import mysql, postgresql

    match kind:
        case mysql.DATETIME() | mysql.TIMESTAMP():
            return type(kind)(fsp=_digits(column[5]))
        case postgresql.TIMESTAMP():
            return postgresql.TIMESTAMP(timezone=kind.timezone, precision=_digits(column[4]))
        case _:
            return kind


def _digits(told: Any) -> int | None:
    return told if isinstance(told, int) and 0 <= told <= 6 else None


def _type_code(code: Any) -> Any:
    # A text of DuckDB's types serves as well, and keeps none of its objects alive.
    return str(code) if type(code).__module__ == "_duckdb._sqltypes" else code


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
    connection.execute(text("DROP VIEW IF EXISTS temp.azfdb_probe"))
    connection.exec_driver_sql(f"CREATE TEMP VIEW azfdb_probe AS {plain}")
    try:
        view = Table("azfdb_probe", MetaData(), autoload_with=connection, resolve_fks=False)
        return {column.name: column.type for column in view.columns}
    finally:
        connection.execute(text("DROP VIEW temp.azfdb_probe"))
