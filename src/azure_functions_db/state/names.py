"""Names of documents, where stores of third parties import them from."""

from azure_functions_db.state.backend import DocumentName, document_name, poller_of

__all__ = ["DocumentName", "document_name", "poller_of"]
