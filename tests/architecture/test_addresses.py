"""The addresses on the package's page are those of where the code is published, and nothing private gets among them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from email import message_from_bytes
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import ZipFile

import pytest

from hatch_build import page_of

if TYPE_CHECKING:
    from email.message import Message

CHECKOUT = Path(__file__).resolve().parents[2]
PAGE = "https://github.com/Contoso/shop-db"
ADDRESSES = {
    "Homepage": PAGE,
    "Documentation": "https://contoso.github.io/shop-db/",
    "Source": PAGE,
    "Changelog": f"{PAGE}/blob/HEAD/CHANGELOG.md",
    "Issues": f"{PAGE}/issues",
}
IN_A_WORKFLOW = {"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "Contoso/shop-db"}
ELSEWHERE = {"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "fabrikam/app"}


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)


def checkout(folder: Path, origin: str | None) -> Path:
    """Make a repository with what a build needs, cloned from somewhere."""
    package = "src/azure_functions_db"
    (folder / package).mkdir(parents=True)
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", f"{package}/_version.py"):
        shutil.copy(CHECKOUT / name, folder / name)
    git(folder, "init")
    if origin is not None:
        git(folder, "remote", "add", "origin", origin)
    return folder


def built(folder: Path, kind: str, said: dict[str, str]) -> tuple[Path, str]:
    """Return what was built, and what was printed."""
    silent = ("AZFDB_", "GITHUB_", "GIT_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(silent)} | said
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind]
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    [package] = (folder / "dist").glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return package, done.stdout


def metadata_of(wheel: Path) -> Message:
    with ZipFile(wheel) as opened:
        [name] = [name for name in opened.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_bytes(opened.read(name))


def addresses(wheel: Path) -> dict[str, str]:
    return dict(line.split(", ", 1) for line in metadata_of(wheel).get_all("Project-URL", []))


@pytest.mark.parametrize(
    ("origin", "said"),
    [
        (f"{PAGE}.git", {}),
        ("git@github.com:Contoso/shop-db.git", {}),
        ("https://octocat:ghp_Secret@github.com/Contoso/shop-db", {}),
        (None, {"AZFDB_REPOSITORY_URL": PAGE}),
        ("https://github.com/somebody/fork.git", {"AZFDB_REPOSITORY_URL": f"{PAGE}/", **ELSEWHERE}),
        (None, IN_A_WORKFLOW),
        (f"{PAGE}.git", {**ELSEWHERE, "GITHUB_WORKSPACE": os.sep}),
    ],
    ids=["https", "ssh", "token", "variable", "variable first", "workflow", "workflow of another project"],
)
def test_a_wheel_leads_to_where_the_code_is_published(tmp_path: Path, origin: str | None, said: dict[str, str]) -> None:
    wheel, printed = built(checkout(tmp_path / "ours", origin), "wheel", said)
    assert addresses(wheel) == ADDRESSES
    assert "ghp_Secret" not in printed + metadata_of(wheel).as_string()


@pytest.mark.parametrize("origin", [None, "/srv/mirrors/shop-db.git", "file:///srv/mirrors/shop-db.git", "../shop-db"])
def test_a_wheel_of_a_private_place_has_no_addresses(tmp_path: Path, origin: str | None) -> None:
    git(tmp_path, "init")
    git(tmp_path, "remote", "add", "origin", "https://github.com/fabrikam/app")
    folder = checkout(tmp_path / "ours", origin)
    if origin is None:
        shutil.rmtree(folder / ".git")
    wheel, _ = built(folder, "wheel", {})
    assert addresses(wheel) == {}
    assert "Dynamic" not in metadata_of(wheel)


def test_a_variable_that_is_no_address_ends_the_build_and_is_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="AZFDB_REPOSITORY_URL must be a repository's address") as failed:
        built(checkout(tmp_path / "ours", None), "wheel", {"AZFDB_REPOSITORY_URL": "http://me:Secret@github.com/a/b"})
    assert "me:Secret" not in str(failed.value)


@pytest.mark.parametrize(("origin", "kept"), [(PAGE, ADDRESSES), (None, {})], ids=["published", "private"])
def test_a_wheel_made_of_an_sdist_keeps_the_addresses_of_the_sdist(
    tmp_path: Path, origin: str | None, kept: dict[str, str]
) -> None:
    sdist, _ = built(checkout(tmp_path / "ours", origin), "sdist", {})
    with tarfile.open(sdist) as opened:
        opened.extractall(tmp_path, filter="data")
    [unpacked] = tmp_path.glob("azure_functions_db-*")
    git(unpacked, "init")
    git(unpacked, "remote", "add", "origin", "https://github.com/fabrikam/vendored")
    wheel, _ = built(unpacked, "wheel", ELSEWHERE)
    assert addresses(wheel) == kept


@pytest.mark.parametrize(
    ("remote", "page"),
    [
        ("ssh://git@git.example.com:2222/team/shop-db.git", "https://git.example.com/team/shop-db"),
        ("https://git.example.com:8443/team/shop-db.git/", "https://git.example.com:8443/team/shop-db"),
        ("https://me:p@ss@gitlab.com/group/team/shop-db\n", "https://gitlab.com/group/team/shop-db"),
        ("https://github.com/Contoso/shop-db?token=secret", None),
        ("https://me:se/cret@github.com/Contoso/shop-db", None),
        ("http://github.com/Contoso/shop-db", None),
        ("https://127.0.0.1:3000/Contoso/shop-db", None),
        ("https://localhost/Contoso/shop-db", None),
        ("work:Contoso/shop-db.git", None),
        ("C:/code/shop-db", None),
        ("github.com/Contoso/shop-db", None),
        ("ssh://git@ssh.github.com:443/Contoso/shop-db.git", None),
        ("git@ssh.dev.azure.com:v3/contoso/shop/shop-db", None),
    ],
)
def test_only_what_people_can_open_is_an_address(remote: str, page: str | None) -> None:
    assert page_of(remote) == page


def test_files_are_shown_where_each_host_shows_them(tmp_path: Path) -> None:
    found = [
        addresses(built(checkout(tmp_path / str(number), origin), "wheel", {})[0])["Documentation"]
        for number, origin in enumerate(["https://gitlab.com/group/shop-db", "https://git.example.com/group/shop-db"])
    ]
    assert found == [
        "https://gitlab.com/group/shop-db/-/tree/HEAD/docs",
        "https://git.example.com/group/shop-db/tree/HEAD/docs",
    ]
