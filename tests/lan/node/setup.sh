#!/bin/sh
# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Turns a Debian or Ubuntu base into a node of the test LAN.
set -eu
cd /opt/torchlan-node
chmod 0755 entrypoint.sh

# a bootstrapped base has them already and needs no network; a public one gets them here
# shellcheck disable=SC2046
if ! dpkg-query --show $(cat packages) >/dev/null 2>&1; then
    apt-get update -q
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $(cat packages)
fi
rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_*

# two people with sudo, one whose sudo asks for a password, and one without whose home folder has a space in its path
useradd --create-home --shell /bin/bash --password '*' trainer
useradd --create-home --shell /bin/bash --password '*' grace
useradd --create-home --shell /bin/bash linus
echo 'linus:torchlan' | chpasswd
mkdir -p /srv/homes
useradd --create-home --home-dir '/srv/homes/ada lovelace' --shell /bin/bash --password '*' ada
printf '%s ALL=(ALL) NOPASSWD: ALL\n' trainer grace >/etc/sudoers.d/torchlan
printf 'Defaults env_keep += "http_proxy https_proxy no_proxy"\n' >>/etc/sudoers.d/torchlan
printf 'linus ALL=(ALL) ALL\n' >>/etc/sudoers.d/torchlan
chmod 0440 /etc/sudoers.d/torchlan

cat >/etc/ssh/sshd_config.d/torchlan.conf <<'CONF'
AuthorizedKeysFile /etc/ssh/authorized_keys
PasswordAuthentication no
UseDNS no
MaxStartups 200
MaxSessions 100
PrintMotd no
CONF
