"""Connections to Azure services as app settings name them, in the spelling of Functions itself."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.codes import Code
from azure_functions_db.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    FindEndpoint = Callable[[str, Mapping[str, str]], str | None]


@dataclass(frozen=True, slots=True)
class ByConnectionString:
    """Reach a service with a connection string."""

    connection_string: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ByIdentity:
    """Reach a service as an Entra identity."""

    endpoint: str
    credential: Any = field(repr=False)


def named_connection(
    connection: str, endpoint_of: FindEndpoint, expected: str, environment: Mapping[str, str] | None = None
) -> ByConnectionString | ByIdentity:
    """Return how to reach the service that an app setting names.

    ``connection`` is the name of a setting with a connection string, or the common start of
    identity-based ones, of which ``endpoint_of`` finds the one with the address; the others are
    ``__credential``, ``__clientId`` and so on. ``expected`` says what could have been there.
    """
    settings = os.environ if environment is None else environment
    if "=" in connection or ";" in connection:
        raise ConfigurationError("connection= is the name of an app setting, not a connection string itself")
    for prefix in (connection, f"AzureWebJobs{connection}"):
        if prefix in settings:
            return ByConnectionString(settings[prefix])
        endpoint = endpoint_of(prefix, settings)
        if endpoint is not None:
            return ByIdentity(endpoint, _credential(prefix, settings))
    raise ConfigurationError(
        f"There is no app setting {connection} (a connection string){expected}",
        setting=connection,
        code=Code.SETTING_MISSING,
    )


def connection_at(
    connection: str, endpoint: str, environment: Mapping[str, str] | None = None
) -> ByConnectionString | ByIdentity:
    """Return how to reach a service whose address has one spelling: ``{connection}__{endpoint}``."""
    return named_connection(
        connection,
        lambda prefix, settings: settings.get(f"{prefix}__{endpoint}"),
        f" and no {connection}__{endpoint} (an address, for an identity)",
        environment,
    )


def _credential(prefix: str, settings: Mapping[str, str]) -> Any:
    try:
        from azure.identity import ClientSecretCredential, DefaultAzureCredential, ManagedIdentityCredential
    except ModuleNotFoundError:
        raise ConfigurationError(
            f"The identity-based settings {prefix}__… need the package azure-identity: "
            'pip install "azure-functions-db[identity]"',
            code=Code.PACKAGE_MISSING,
        ) from None
    identity = {
        name: settings.get(f"{prefix}__{name}") for name in ("credential", "clientId", "tenantId", "clientSecret")
    }
    match identity:
        case {"credential": str() as kind, "clientId": client} if kind.lower() == "managedidentity":
            return ManagedIdentityCredential(client_id=client) if client else ManagedIdentityCredential()
        case {"credential": str() as kind}:
            raise ConfigurationError(f"{prefix}__credential is {kind!r}; only managedidentity is known")
        case {"tenantId": str() as tenant, "clientId": str() as client, "clientSecret": str() as secret}:
            return ClientSecretCredential(tenant, client, secret)
        case {"clientId": str() as client}:
            return DefaultAzureCredential(managed_identity_client_id=client)
        case _:
            return DefaultAzureCredential()
