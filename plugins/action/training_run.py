# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action of torchlan.nanochat.training_run: completes the environment with the secrets, then runs the module."""

from __future__ import annotations

import base64
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.plugin_utils import render, runner_zip
from ansible_collections.torchlan.nanochat.plugins.plugin_utils.remote import RemoteAction
from ansible_collections.torchlan.nanochat.plugins.plugin_utils.settings import SECRET, secret_env


class ActionModule(RemoteAction):
    """The secrets go from the variables straight into one parameter that is never logged: no task ever names them."""

    def work(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        if args.get("state") == "started":
            variables = {**args["environment"], **secret_env(self._templar.template(task_vars.get(SECRET)))}
            args = {
                **{name: value for name, value in args.items() if name != "environment"},
                "env": render.env_file(variables),
                "runner": base64.b64encode(runner_zip.build()).decode(),
            }
        return self.remote(args, task_vars)
