"""Certificates that a test makes for itself."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Certificate:
    """The files of a certificate and its key."""

    file: Path
    key_file: Path


class Authority:
    """Signs certificates for hosts; whoever trusts its own certificate trusts them."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._usage = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        own = self._signed(self._name, self._key, x509.BasicConstraints(ca=True, path_length=0), self._usage)
        self.file = self._written("authority.pem", own.public_bytes(serialization.Encoding.PEM))

    def issue(self, address: str) -> Certificate:
        """Make a certificate for an IP address."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "database")])
        places = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        made = self._signed(name, key, x509.BasicConstraints(ca=False, path_length=None), places)
        encoded = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        file = self._written(f"{address}.pem", made.public_bytes(serialization.Encoding.PEM))
        return Certificate(file, self._written(f"{address}.key", encoded))

    def _signed(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, *extensions: x509.ExtensionType
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._usage), critical=False)
        )
        for extension in extensions:
            critical = isinstance(extension, x509.BasicConstraints)
            builder = builder.add_extension(extension, critical=critical)
        return builder.sign(self._key, hashes.SHA256())

    def _written(self, name: str, content: bytes) -> Path:
        path = self._folder / name
        path.touch(mode=0o600)
        path.write_bytes(content)
        return path
