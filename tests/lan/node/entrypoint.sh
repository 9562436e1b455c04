#!/usr/bin/env bash
# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# First process of a node. bash, not sshd, because something must reap the orphans that tests make on purpose.
set -eu
ssh-keygen -q -A # every node has its own host keys, made when it starts
printf '%s\n' "${TORCHLAN_AUTHORIZED_KEY:?}" >/etc/ssh/authorized_keys
mkdir -p /run/sshd
trap 'exit 0' TERM INT
/usr/sbin/sshd -D -e &
wait
