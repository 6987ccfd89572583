"""Logins and keys with fewer rights than the shop's own."""

from __future__ import annotations

import base64
import datetime as dt
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from azure.storage.blob import ContainerSasPermissions, generate_container_sas
from sqlalchemy import create_engine, make_url, text

PASSWORD = "hush"


@contextmanager
def visitor(database: str, *rights: str) -> Iterator[str]:
    """The URL of a login that may do nothing but this, such as ``SELECT ON azfdb_state``."""
    name = f"visitor_{secrets.token_hex(4)}"
    url = make_url(database)
    is_mariadb = url.get_backend_name() == "mysql"
    admin = create_engine(url, isolation_level="AUTOCOMMIT")
    made = f"CREATE USER {name} IDENTIFIED BY" if is_mariadb else f"CREATE ROLE {name} LOGIN PASSWORD"
    gone = f"DROP USER {name}" if is_mariadb else f"DROP OWNED BY {name}; DROP ROLE {name}"
    try:
        with admin.connect() as connection:
            for statement in (f"{made} '{PASSWORD}'", *(f"GRANT {right} TO {name}" for right in rights)):
                connection.execute(text(statement))
            try:
                yield url.set(username=name, password=PASSWORD).render_as_string(hide_password=False)
            finally:
                connection.execute(text(gone))
    finally:
        admin.dispose()


def parts_of(connection_string: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in connection_string.split(";"))


def with_wrong_key(connection_string: str) -> str:
    """The same account with a key that is not its own."""
    wrong = base64.b64encode(secrets.token_bytes(64)).decode()
    return connection_string.replace(parts_of(connection_string)["AccountKey"], wrong)


def for_readers(connection_string: str, container: str) -> str:
    """The same account with a signature that lets read and list only."""
    parts = parts_of(connection_string)
    signature = generate_container_sas(
        parts["AccountName"],
        container,
        account_key=parts["AccountKey"],
        permission=ContainerSasPermissions(read=True, list=True),
        expiry=dt.datetime.now(dt.UTC) + dt.timedelta(hours=1),
    )
    return f"BlobEndpoint={parts['BlobEndpoint']};SharedAccessSignature={signature}"


def unanswered(connection_string: str) -> str:
    """The same account at a port where nobody listens."""
    parts = parts_of(connection_string)
    return f"AccountName={parts['AccountName']};AccountKey={parts['AccountKey']};BlobEndpoint=http://127.0.0.1:9/x"
