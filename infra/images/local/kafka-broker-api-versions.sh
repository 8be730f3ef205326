#!/bin/bash
# Ends well if a broker listens at the address: what the script of this name in the image of Apache Kafka is asked for.
set -eu
[ "$1" = --bootstrap-server ]
exec 3<>"/dev/tcp/${2%:*}/${2#*:}"
