"""What the stores on Azure Storage share: reading connection settings and translating errors."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from azure_functions_db.core.errors import ConfigurationError, StateStoreError
from azure_functions_db.core.secrets import masked

if TYPE_CHECKING:
    from azure.core.exceptions import AzureError

T = TypeVar("T")

# The emulator's account is the same everywhere and public; the Python SDK does not know its short form.
_EMULATOR_ACCOUNT = "devstoreaccount1"
_EMULATOR_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_EMULATOR_PORTS = {"Blob": 10000, "Queue": 10001, "Table": 10002}


@dataclass(frozen=True, slots=True)
class ByConnectionString:
    """Reach an account with a connection string."""

    connection_string: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ByIdentity:
    """Reach an account's service as an Entra identity."""

    service_uri: str
    credential: Any = field(repr=False)


def storage_account(
    connection: str, service: str, environment: Mapping[str, str] | None = None
) -> ByConnectionString | ByIdentity:
    """Return how to reach the account that an app setting names, as Functions itself reads settings.

    ``connection`` is the name of a setting with a connection string, or the common start of
    identity-based ones: ``{connection}__blobServiceUri`` (``__tableServiceUri``,
    ``__serviceUri``) or ``__accountName``, with ``__credential``, ``__clientId`` and so on.
    """
    settings = os.environ if environment is None else environment
    if "=" in connection or ";" in connection:
        raise ConfigurationError("connection= is the name of an app setting, not a connection string itself")
    for prefix in (connection, f"AzureWebJobs{connection}"):
        if prefix in settings:
            return ByConnectionString(_expanded(settings[prefix]))
        uri = _service_uri(prefix, service, settings)
        if uri is not None:
            return ByIdentity(uri, _credential(prefix, settings))
    raise ConfigurationError(
        f"There is no app setting {connection} (a connection string), {connection}__{service}ServiceUri or "
        f"{connection}__accountName",
        setting=connection,
    )


def asked(poller_name: str | None, work: Callable[[], T]) -> T:
    """Ask the storage service; what it raises becomes a `StateStoreError` without secrets."""
    from azure.core.exceptions import AzureError

    try:
        return work()
    except AzureError as failure:
        translated, cause = _translated(poller_name, failure), failure
    # Raised out here, so that an error that could show a signed URL is not even its context.
    raise translated from (cause if _is_clean(cause) else None)


def error_code(failure: AzureError) -> str:
    """Return the service's own code of the error, such as ``ContainerNotFound``."""
    code = getattr(failure, "error_code", None)
    return str(getattr(code, "value", code) or _code_in_body(failure) or type(failure).__name__)


def _code_in_body(failure: AzureError) -> str | None:
    # The table client leaves the code of a refused insert where the service put it.
    response: Any = getattr(failure, "response", None)
    try:
        return str(json.loads(response.text())["odata.error"]["code"])
    except (AttributeError, ValueError, TypeError, KeyError):
        return None


def _translated(poller_name: str | None, failure: AzureError) -> StateStoreError:
    status = getattr(failure, "status_code", None)
    answer = f"{error_code(failure)}, HTTP {status}" if status else error_code(failure)
    of_poller = f" of poller {poller_name!r}" if poller_name else ""
    return StateStoreError(f"Azure Storage failed on the state{of_poller}: {answer}", poller_name=poller_name)


def _is_clean(error: BaseException | None) -> bool:
    """Tell whether neither the error nor anything it stems from shows a secret."""
    while error is not None:
        shown = str(error)
        if masked(shown) != shown:
            return False
        error = error.__cause__ or error.__context__
    return True


def _expanded(connection_string: str) -> str:
    if connection_string.strip().rstrip(";").lower() != "usedevelopmentstorage=true":
        return connection_string
    endpoints = "".join(
        f"{service}Endpoint=http://127.0.0.1:{port}/{_EMULATOR_ACCOUNT};" for service, port in _EMULATOR_PORTS.items()
    )
    return f"DefaultEndpointsProtocol=http;AccountName={_EMULATOR_ACCOUNT};AccountKey={_EMULATOR_KEY};{endpoints}"


def _service_uri(prefix: str, service: str, settings: Mapping[str, str]) -> str | None:
    for name in (f"{prefix}__{service}ServiceUri", f"{prefix}__serviceUri"):
        if name in settings:
            return settings[name]
    account = settings.get(f"{prefix}__accountName")
    return f"https://{account}.{service}.core.windows.net" if account else None


def _credential(prefix: str, settings: Mapping[str, str]) -> Any:
    try:
        from azure.identity import ClientSecretCredential, DefaultAzureCredential, ManagedIdentityCredential
    except ModuleNotFoundError:
        raise ConfigurationError(
            f"The identity-based settings {prefix}__… need the package azure-identity: "
            'pip install "azure-functions-db[identity]"'
        ) from None
    found = {name: settings.get(f"{prefix}__{name}") for name in ("credential", "clientId", "tenantId", "clientSecret")}
    match found:
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
