#!/bin/sh
# Runs PostgreSQL as the official image does: a database and its scripts at the first start, then the command.
set -eu
if [ "${1:-}" != postgres ]; then
    exec "$@"
fi
export PGDATA=/var/lib/postgresql/data
if [ "$(id -u)" = 0 ]; then
    mkdir -p "$PGDATA"
    chown postgres "$PGDATA"
    exec runuser -u postgres -- "$0" "$@"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    printf '%s' "${POSTGRES_PASSWORD:?}" >/tmp/password
    initdb -D "$PGDATA" -U postgres -E UTF8 --locale=C --auth-host=scram-sha-256 --auth-local=trust --pwfile=/tmp/password
    rm /tmp/password
    echo 'host all all all scram-sha-256' >>"$PGDATA/pg_hba.conf"
    pg_ctl -D "$PGDATA" -w -o "-c listen_addresses=''" start
    if [ "${POSTGRES_DB:-postgres}" != postgres ]; then
        createdb -U postgres "$POSTGRES_DB"
    fi
    for script in /docker-entrypoint-initdb.d/*.sql; do
        psql -U postgres -d "${POSTGRES_DB:-postgres}" -v ON_ERROR_STOP=1 -f "$script"
    done
    pg_ctl -D "$PGDATA" -w stop
fi
exec "$@"
