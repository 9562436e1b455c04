#!/usr/bin/python
# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: training_run
short_description: Start or end a host's part of a training run
version_added: 0.1.0
author:
  - torchlan contributors (@torchlan)
description:
  - Started, writes the files of an attempt and runs its C(run.sh) in a detached tmux session, on a private tmux server
    (C(tmux -L torchlan)). Then it waits until torchrun is there, or says with the last lines of the log why not.
  - Stopped, ends all processes of this run on this host and its tmux session. This works too for what is half alive,
    for orphans of a killed agent, for stopped processes and for an agent in torchrun's exit barrier, which ignores
    SIGTERM.
  - Only processes with this run's folder in their environment are signalled, and only the user's own.
  - What stands against a start or remains after an end is in RV(causes). It does not fail the task.
attributes:
  check_mode:
    description: Can run in check mode and return changed status prediction without modifying target.
    support: full
    details:
      - With O(state=stopped), RV(ended) lists what would be ended.
  diff_mode:
    description: Returns details on what has changed in diff mode.
    support: partial
    details:
      - The difference of C(run.sh) to the attempt before. The environment is never part of it.
  idempotent:
    description: When run twice in a row, the second run changes nothing.
    support: full
    details:
      - The same O(attempt) that is alive is left alone.
options:
  state:
    description: Whether this host's part of the run is to be alive or ended.
    type: str
    choices: [started, stopped]
    default: started
  base_dir:
    description: Folder that has the runs in C(runs/), C(NANOCHAT_BASE_DIR). A leading C(~) is the user's home folder.
    type: str
    required: true
  run:
    description: Name of the run, letters, digits, C(-) and C(_).
    type: str
    required: true
  node_rank:
    description: The rank of this host in the cluster.
    type: int
    required: true
  attempt:
    description: Name of the attempt, like C(20261130-180102). A new start needs a new one.
    type: str
  script:
    description: Text of C(run.sh). It starts torchrun, and writes C(exit_code) at its end.
    type: str
  environment:
    description:
      - Environment of the run by name, without the secrets.
      - Read by the action plugin, which adds C(nanochat_secret_env) and makes O(env) of both.
    type: dict
  env:
    description:
      - Text of the file C(env) with mode 0600, which C(run.sh) sources.
      - It may hold secrets. It is neither logged nor returned.
    type: str
  record:
    description:
      - Content of C(run.json). The module adds the boot id, the time, the session and the folder of the tmux socket.
    type: dict
  runner:
    description: The runner as a zip archive in base64, for C(runner.zip).
    type: str
  port:
    description:
      - The rendezvous port.
      - With O(state=started) on node rank 0, a start is refused while another program holds it.
      - With O(state=stopped), RV(port_free) tells whether it is free afterwards.
    type: int
  reason:
    description: Why the run is ended; it is kept in the file C(stopped).
    type: str
    default: stopped
  grace_s:
    description: Seconds between SIGTERM and SIGKILL.
    type: float
    default: 4
seealso:
  - module: torchlan.nanochat.rendezvous
  - module: torchlan.nanochat.node_info
"""

EXAMPLES = r"""
- name: Start this host's part of the run
  torchlan.nanochat.training_run:
    state: started
    base_dir: ~/.cache/nanochat
    run: first
    node_rank: 0
    attempt: 20261130-180102
    script: |
      #!/usr/bin/env bash
      . "$TORCHLAN_RUN_DIR/env"
      python3 -m torch.distributed.run --nnodes=2 --node_rank=0 train.py 2>&1 | tee -a "$TORCHLAN_RUN_DIR/train.log"
      echo "${PIPESTATUS[0]}" > "$TORCHLAN_RUN_DIR/exit_code"
    env: |
      export OMP_NUM_THREADS='8'
    record:
      schema: 1
      run: first
    port: 29500

- name: End it, whatever is left of it
  torchlan.nanochat.training_run:
    state: stopped
    base_dir: ~/.cache/nanochat
    run: first
    node_rank: 0
    port: 29500
    reason: no longer needed
"""

RETURN = r"""
causes:
  description: What stood against it, each with C(code), C(weight), C(what) and C(fix). Empty when all is well.
  returned: always
  type: list
  elements: dict
  sample:
    - code: start_failed
      weight: error
      host: null
      rank: null
      what: "torchrun ended at once with exit code 1; last line: No module named torch"
      fix: read /home/me/.cache/nanochat/runs/first/attempts/20261130-180102/node-0/train.log
session:
  description: Name of the tmux session.
  returned: always
  type: str
  sample: first-0
attempt_dir:
  description: Folder of this host's part of the attempt.
  returned: with O(state=started)
  type: str
  sample: /home/me/.cache/nanochat/runs/first/attempts/20261130-180102/node-0
attach:
  description: Command for a person on this host who wants to see the session.
  returned: with O(state=started)
  type: str
  sample: tmux -L torchlan attach -t '=first-0:'
tail:
  description: Command for a person on this host who wants to follow the log.
  returned: with O(state=started)
  type: str
  sample: tail -F /home/me/.cache/nanochat/runs/first/current-0/train.log
log_tail:
  description: Last lines of the log or the screen, when the start failed.
  returned: with O(state=started)
  type: list
  elements: str
ended:
  description:
    - The processes that were ended, or would be in check mode.
    - C(signal) is the last one that was sent, and null where the process ended as a consequence of another's end.
  returned: with O(state=stopped)
  type: list
  elements: dict
  sample:
    - {pid: 4711, role: agent, rank: null, attempt: 20261130-180102, signal: SIGTERM}
left:
  description: Processes that are there even after SIGKILL, for example in uninterruptible I/O.
  returned: with O(state=stopped)
  type: list
  elements: dict
port_free:
  description: Whether the port is free now. Null when no O(port) was given, and in check mode.
  returned: with O(state=stopped)
  type: bool
"""

import math

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchlan.nanochat.plugins.module_utils.run_start import Order, decode_error, start
from ansible_collections.torchlan.nanochat.plugins.module_utils.run_stop import stop
from ansible_collections.torchlan.nanochat.plugins.module_utils.runs import RunPaths


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["started", "stopped"], "default": "started"},
            "base_dir": {"type": "str", "required": True},
            "run": {"type": "str", "required": True},
            "node_rank": {"type": "int", "required": True},
            "attempt": {"type": "str"},
            "script": {"type": "str"},
            # One long text: a dictionary would have each of its values, even "1", censored in every result.
            "environment": {"type": "dict"},
            "env": {"type": "str", "no_log": True},
            "record": {"type": "dict"},
            "runner": {"type": "str", "no_log": True},  # no secret, but a hundred kilobytes in every verbose log
            "port": {"type": "int"},
            "reason": {"type": "str", "default": "stopped"},
            "grace_s": {"type": "float", "default": 4},
        },
        required_if=[("state", "started", ("attempt", "script", "env", "record"))],
        supports_check_mode=True,
    )
    params = module.params
    try:
        paths = RunPaths.of(params["base_dir"], params["run"], params["node_rank"])
        if params["state"] == "stopped":
            if not (math.isfinite(params["grace_s"]) and params["grace_s"] >= 0):
                raise ValueError("grace_s must be 0 or more, got %s" % params["grace_s"])
            result = stop(paths, params["reason"], params["grace_s"], params["port"], module.check_mode)
            module.exit_json(session=paths.session, **result)
        problem = decode_error(params["runner"])
        if problem:
            raise ValueError("runner is not base64: %s" % problem)
        paths.node_dir(params["attempt"])
    except ValueError as problem:
        module.fail_json(msg=str(problem))
    order = Order(
        paths,
        attempt=params["attempt"],
        script=params["script"],
        env=params["env"],
        record=params["record"],
        runner=params["runner"],
        port=params["port"],
    )
    module.exit_json(**start(order, module.check_mode))


if __name__ == "__main__":
    main()
