#!/bin/sh
# Installs a requirement of ours into /opt/slackwater, inside a build: members from /build/dist and from nowhere
# else, all other packages in the versions and with the hashes of requirements.lock.
set -eu
requirement=$1
python3 -m venv /build/tools
/build/tools/bin/pip install --quiet --no-cache-dir --disable-pip-version-check --require-hashes -r /build/uv.lock
for wheel in /build/dist/*.whl; do
    # A direct reference, so that a package of the same name in a registry is never taken for a member.
    echo "$(basename "$wheel" | cut -d- -f1 | tr _ -) @ file://$wheel"
done >/build/members.txt
python3 -m venv --without-pip /opt/slackwater
/build/tools/bin/uv pip install --quiet --no-cache --python /opt/slackwater/bin/python --compile-bytecode \
    --constraint /build/requirements.lock --constraint /build/members.txt "$requirement"
