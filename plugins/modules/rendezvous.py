#!/usr/bin/python
# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: rendezvous
short_description: Wait on the master for proof that a run trains together, or for a cause
version_added: 0.1.0
author:
  - torchlan contributors (@torchlan)
description:
  - Looks at the master's part of a run for up to O(wait_s) seconds and says where it is. It comes back early when
    something is decided or the phase changes. It is meant to be called until RV(done).
  - Proof is that every rank did O(min_steps) steps, exchanged the bytes that synchronous training needs, over
    connections with other ranks on the chosen interface, and holds the same parameters.
  - Compiling is not taken for a hang; the limits are O(join_timeout) and O(first_step_timeout).
  - A cause does not fail the task.
extends_documentation_fragment:
  - torchlan.nanochat.attributes.facts
attributes:
  check_mode:
    description: Runs without changes in check mode and returns the same answer.
    support: full
options:
  base_dir:
    description: Folder that has the runs in C(runs/), C(NANOCHAT_BASE_DIR). A leading C(~) is the user's home folder.
    type: str
    required: true
  run:
    description: Name of the run.
    type: str
    required: true
  node_rank:
    description: The rank of this host in the cluster; 0 on the master.
    type: int
    default: 0
  attempt:
    description: Name of the attempt.
    type: str
    required: true
  wait_s:
    description: Seconds after which to come back undecided.
    type: float
    default: 5
  min_steps:
    description: Optimizer steps that every rank must have done.
    type: int
    default: 2
  expected_bytes_per_step:
    description:
      - Bytes that a rank sends, and receives, in a step of synchronous training. At least half of them must be seen.
      - Where the runner tells the size of the parameters, that is used instead.
    type: int
  runner:
    description:
      - Whether the script was started through the runner.
      - Without it, step lines of the log and the sockets of this host's workers are all there is. RV(done) with
        RV(phase=training) then means that this host has shown its part, and the other hosts are to be looked at.
    type: bool
    default: true
  join_timeout:
    description: Seconds within which all ranks must have joined.
    type: float
    default: 20
  first_step_timeout:
    description: Seconds within which the first step must be done, compiling included.
    type: float
    default: 900
  since_unix:
    description: When the run was started, where its C(run.json) does not tell.
    type: float
  world_size:
    description: Number of ranks, where neither C(cluster.json) nor the plan tell.
    type: int
seealso:
  - module: torchlan.nanochat.training_run
"""

EXAMPLES = r"""
- name: Wait for proof or a cause
  torchlan.nanochat.rendezvous:
    base_dir: ~/.cache/nanochat
    run: first
    attempt: 20261130-180102
  register: result
  until: result.done
  retries: 100
  delay: 0
"""

RETURN = r"""
phase:
  description:
    - V(waiting_for_ranks), V(compiling), V(training), V(restarting), V(proven), V(failed), V(finished) or
      V(unverified).
    - V(finished) means that it ended well before enough was seen, V(unverified) that it cannot be seen here.
  returned: always
  type: str
  sample: proven
progress:
  description: One line for a person.
  returned: always
  type: str
  sample: step 3 of 10, loss 8.316379, 118.0 MB sent per rank
done:
  description: Whether there is nothing more to wait for.
  returned: always
  type: bool
causes:
  description: Why it failed, each with C(code), C(weight), C(what) and C(fix).
  returned: always
  type: list
  elements: dict
state:
  description: State of the master's part of the run, as in M(torchlan.nanochat.node_info).
  returned: always
  type: str
  sample: alive
exit_code:
  description: Exit code of torchrun, null while it is alive.
  returned: always
  type: int
cluster:
  description: What rank 0 wrote of all ranks; null without the runner.
  returned: always
  type: dict
sockets:
  description: TCP connections of this host's workers with the kernel's byte counters, each with its C(rank).
  returned: always
  type: list
  elements: dict
evidence:
  description: What was seen of each rank, and what is waited for.
  returned: always
  type: dict
log_tail:
  description: Last lines of the master's log.
  returned: always
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchlan.nanochat.plugins.module_utils.await_proof import Question, wait
from ansible_collections.torchlan.nanochat.plugins.module_utils.runs import RunPaths


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "base_dir": {"type": "str", "required": True},
            "run": {"type": "str", "required": True},
            "node_rank": {"type": "int", "default": 0},
            "attempt": {"type": "str", "required": True},
            "wait_s": {"type": "float", "default": 5},
            "min_steps": {"type": "int", "default": 2},
            "expected_bytes_per_step": {"type": "int"},
            "runner": {"type": "bool", "default": True},
            "join_timeout": {"type": "float", "default": 20},
            "first_step_timeout": {"type": "float", "default": 900},
            "since_unix": {"type": "float"},
            "world_size": {"type": "int"},
        },
        supports_check_mode=True,
    )
    params = dict(module.params)
    try:
        paths = RunPaths.of(params.pop("base_dir"), params.pop("run"), params.pop("node_rank"))
        paths.node_dir(params["attempt"])
    except ValueError as problem:
        module.fail_json(msg=str(problem))
    module.exit_json(changed=False, **wait(Question(paths, **params)))


if __name__ == "__main__":
    main()
