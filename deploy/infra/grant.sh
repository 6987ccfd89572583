#!/bin/sh
# Makes the tables, and a login for the app's identity that may do no more than app/schema.sql grants.
# Needs az and psql, and an address that the server's firewall lets in.
set -eu
cd "$(dirname "$0")/.."

export PGHOST="$DATABASE_HOST" PGUSER="$DATABASE_ADMINISTRATOR"
export PGSSLMODE="${PGSSLMODE:-verify-full}" PGSSLROOTCERT="${PGSSLROOTCERT:-system}"
PGPASSWORD="$(az account get-access-token --resource-type oss-rdbms --query accessToken --output tsv)"
export PGPASSWORD

# Roles of identities are made in the server's own database.
psql --quiet --no-psqlrc --set=ON_ERROR_STOP=1 --set=app="$APP_IDENTITY" --dbname="${ADMIN_DATABASE:-postgres}" <<'SQL'
SELECT count(*) = 0 AS unknown FROM pg_roles WHERE rolname = :'app' \gset
\if :unknown
SELECT pgaadauth_create_principal(:'app', false, false) \g /dev/null
\endif
SQL
psql --quiet --no-psqlrc --set=ON_ERROR_STOP=1 --set=app="$APP_IDENTITY" --set=database="$DATABASE_NAME" \
    --dbname="$DATABASE_NAME" --file=app/schema.sql
