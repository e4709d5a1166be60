#!/bin/sh
# Of the image of MariaDB: whether the server answers by TCP.
exec mariadb-admin ping --host=127.0.0.1 --user=root --silent
