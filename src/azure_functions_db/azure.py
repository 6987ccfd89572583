"""Azure's services as app settings name them, in the spelling of Functions itself, and what their errors mean."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, assert_never

from azure_functions_db.core.config import encoded_app, encoded_name, expanded
from azure_functions_db.core.errors import Code, ConfigurationError, StateStoreError, masked_error

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterator, Mapping

    from azure.core.exceptions import AzureError
    from azure.storage.blob import ContainerClient, ExponentialRetry

    FindEndpoint = Callable[[str, Mapping[str, str]], str | None]

Client = TypeVar("Client")


T = TypeVar("T")


# The emulator's account is the same everywhere and public; the Python SDK does not know its short form.
_EMULATOR_ACCOUNT = "devstoreaccount1"
_EMULATOR_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_EMULATOR_PORTS = {"Blob": 10000, "Queue": 10001, "Table": 10002}

# Enough for a lost packet; who sits in front of a terminal can ask again.
_HASTE = {"retry_total": 1, "connection_timeout": 2, "read_timeout": 10}
_HASTY_BACKOFF = 0.3

_hurried: ContextVar[bool] = ContextVar("azfdb_hurried", default=False)


@contextmanager
def hurried(*, hurry: bool = True) -> Iterator[None]:
    """Wait a few seconds at most for blob storage while this lasts: a person wants to know whether it answers."""
    before = _hurried.set(hurry)
    try:
        yield
    finally:
        _hurried.reset(before)


def storage_account(
    connection: str, service: str, environment: Mapping[str, str] | None = None
) -> ByConnectionString | ByIdentity:
    """Return how to reach the account that an app setting names, as Functions itself reads settings.

    ``connection`` is the name of a setting with a connection string, or the common start of
    identity-based ones: ``{connection}__blobServiceUri`` (``__tableServiceUri``,
    ``__serviceUri``) or ``__accountName``, with ``__credential``, ``__clientId`` and so on.
    """
    account = named_connection(
        connection,
        lambda prefix, settings: _service_uri(prefix, service, settings),
        f", {connection}__{service}ServiceUri or {connection}__accountName",
        environment,
    )
    if isinstance(account, ByConnectionString):
        return ByConnectionString(_expanded(account.connection_string))
    return account


def blob_container(connection: str, container: str) -> ContainerClient:
    """Return a client of a container in the account that an app setting names; nothing is contacted yet."""
    from azure.storage.blob import ContainerClient

    return storage_client(ContainerClient, connection, "blob", container, retry_policy=_retries())


def storage_client(kind: type[Client], connection: str, service: str, name: str, **options: Any) -> Client:
    """Return a client of one thing in the account that an app setting names, of the SDK's given class."""
    made: Any = kind
    # The SDK's own patience (a minute for an answer, five for a table's) outlasts a lease.
    options |= {"connection_timeout": 5, "read_timeout": 15}
    match storage_account(connection, service):
        case ByConnectionString(text):
            try:
                return made.from_connection_string(text, name, **options)  # type: ignore[no-any-return]
            except ValueError:
                raise ConfigurationError(
                    f"The app setting {connection} is no storage connection string", setting=connection
                ) from None
        case ByIdentity(uri, credential):
            return made(uri, name, credential=credential, **options)  # type: ignore[no-any-return]
        case other:
            assert_never(other)


class BlobFolder:
    """An app's blobs below one folder of a container, which is made when it turns out to be missing.

    ``failure`` makes the error for whatever the service raises; the reason it is given holds no secret.
    """

    def __init__(
        self,
        folder: str,
        app_name: str | None,
        container: ContainerClient | tuple[str, str],
        failure: Callable[[str], Exception],
    ) -> None:
        if app_name:
            encoded_name("app_name", app_name)
        self._folder = folder
        self._app_name = app_name
        self._given = container
        self._failure = failure

    def names(self, below: str = "") -> list[str]:
        """Return the names of the blobs whose names begin like this."""
        root = self._root

        def listed() -> list[str]:
            return [name.removeprefix(root) for name in self._container.list_blob_names(name_starts_with=root + below)]

        return self._found(listed, [])

    def read(self, name: str) -> bytes | None:
        """Return a blob's content; None where it is not there."""
        found = self.read_tagged(name)
        return None if found is None else found[0]

    def read_tagged(self, name: str) -> tuple[bytes, str] | None:
        """Return a blob's content with its ETag; None where it is not there."""

        def downloaded() -> tuple[bytes, str]:
            blob = self._container.download_blob(self._root + name)
            return blob.readall(), blob.properties.etag

        return self._found(downloaded, None)

    def write(self, contents: Mapping[str, bytes]) -> None:
        """Keep blobs, each before the next."""

        def upload() -> bool:
            for name, content in contents.items():
                self._container.upload_blob(self._root + name, content, overwrite=True)
            return True

        if not self._found(upload, absent=False):
            self._asked(self._make_container)
            self._asked(upload)

    def remove(self, name: str) -> None:
        """Forget a blob; one that is not there is no error."""
        self._found(lambda: self._container.delete_blob(self._root + name), None)

    def remove_tagged(self, name: str, etag: str) -> None:
        """Forget a blob unless it was written anew; one that is not there is no error."""
        from azure.core import MatchConditions
        from azure.core.exceptions import ResourceModifiedError

        def delete() -> None:
            with suppress(ResourceModifiedError):
                self._container.delete_blob(self._root + name, etag=etag, match_condition=MatchConditions.IfNotModified)

        self._found(delete, None)

    @property
    def _root(self) -> str:
        return f"{self._folder}/{encoded_app(self._app_name)}/"

    @cached_property
    def _container(self) -> ContainerClient:
        if not isinstance(self._given, tuple):
            return self._given
        connection, container = self._given
        return blob_container(connection, expanded(container))

    def _make_container(self) -> None:
        from azure.core.exceptions import ResourceExistsError

        with suppress(ResourceExistsError):
            self._container.create_container()

    def _found(self, work: Callable[[], T], absent: T) -> T:
        """Return what the work returns, or what stands for a blob or container that is not there."""
        from azure.core.exceptions import ResourceNotFoundError

        def found() -> T:
            try:
                return work()
            except ResourceNotFoundError:
                return absent

        return self._asked(found)

    def _asked(self, work: Callable[[], T]) -> T:
        from azure.core.exceptions import AzureError

        try:
            return work()
        except AzureError as failure:
            refused, cause = self._failure(failure_told(failure, error_code(failure))), masked_error(failure)
        # Raised out here, so that an error that could show a signed URL is not even its context.
        raise refused from cause


def failure_told(failure: AzureError, code: str) -> str:
    """Return in a few words what a failure of a storage service means; its own text may show a signed URL."""
    from azure.core.exceptions import ServiceRequestError, ServiceResponseError

    if isinstance(failure, ServiceRequestError | ServiceResponseError):
        return f"it does not answer{_at(failure)} ({code})"
    if code in _BAD_NAMES:
        return f"the name of a container is 3 to 63 small letters, digits and hyphens ({code})"
    status = getattr(failure, "status_code", None)
    answer = f"{code}, HTTP {status}" if status else code
    return f"it refuses access ({answer})" if status in {401, 403} else answer


_BAD_NAMES = {"InvalidResourceName", "OutOfRangeInput"}


def _at(failure: AzureError) -> str:
    """Return where nobody answered, where the client tells it."""
    connection = getattr(failure.inner_exception, "conn", None)
    host, port = getattr(connection, "host", None), getattr(connection, "port", None)
    if host is None:
        return ""
    return f" at {host}:{port}" + (", is Azurite running?" if host in {"127.0.0.1", "localhost", "::1"} else "")


def _retries() -> ExponentialRetry:
    from azure.storage.blob import ExponentialRetry

    class Retries(ExponentialRetry):
        """Asks again within the life of a lease, or within a person's patience."""

        def configure_retries(self, request: Any) -> dict[str, Any]:
            if _hurried.get():
                request.context.options.update(_HASTE)
            return super().configure_retries(request)

        def get_backoff_time(self, settings: dict[str, Any]) -> float:
            return _HASTY_BACKOFF if _hurried.get() else super().get_backoff_time(settings)

    # By itself the SDK would wait 15 seconds before the first retry.
    return Retries(initial_backoff=1, increment_base=2, retry_total=3, random_jitter_range=1)


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


def asked(poller_name: str | None, work: Callable[[], T], service: str = "Azure Storage") -> T:
    """Ask the service that keeps state; what it raises becomes a `StateStoreError` without secrets."""
    from azure.core.exceptions import AzureError

    try:
        return work()
    except AzureError as failure:
        translated, cause = _translated(service, poller_name, failure), failure
    # Raised out here, so that an error that could show a signed URL is not even its context.
    raise translated from masked_error(cause)


def error_code(failure: AzureError) -> str:
    """Return the service's own code of the error, such as ``ContainerNotFound``."""
    code = getattr(failure, "error_code", None)
    return str(getattr(code, "value", code) or _code_in_body(failure) or type(failure).__name__)


def service_time(ask: Callable[[Callable[[Any], None]], object]) -> dt.datetime | None:
    """Return the date of a service's answer; ``ask`` makes a request with the hook that it is given."""
    from email.utils import parsedate_to_datetime

    from azure.core.exceptions import HttpResponseError

    dates: list[str] = []
    # Any answer has a date: a signature that lets read blobs may not let look at their container.
    with suppress(HttpResponseError):
        ask(lambda response: dates.append(response.http_response.headers.get("Date", "")))
    return parsedate_to_datetime(dates[-1]) if dates and dates[-1] else None


def _code_in_body(failure: AzureError) -> str | None:
    # The table client leaves the code of a refused insert where the service put it.
    response: Any = getattr(failure, "response", None)
    try:
        return str(json.loads(response.text())["odata.error"]["code"])
    except (AttributeError, ValueError, TypeError, KeyError):
        return None


def _translated(service: str, poller_name: str | None, failure: AzureError) -> StateStoreError:
    answer = failure_told(failure, error_code(failure))
    of_poller = f" of poller {poller_name!r}" if poller_name else ""
    return StateStoreError(
        f"{service} failed on the state{of_poller}: {answer}", poller_name=poller_name, unreachable=True
    )


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
