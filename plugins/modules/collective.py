#!/usr/bin/python
# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: collective
short_description: One rank of a small exchange over all hosts, timed
version_added: 0.1.0
author:
  - torchlan contributors (@torchlan)
description:
  - Starts one short process with torch that meets those of the other hosts and exchanges some megabytes, and says later
    what it found. All hosts must be started before any of them can have an answer, so these are two tasks.
  - Leaves nothing behind. The process ends after at most O(limit_s), whatever happens.
extends_documentation_fragment:
  - torchlan.nanochat.attributes.facts
options:
  job:
    description: What the first task returned. Without it, the process is started.
    type: str
  python:
    description: Interpreter with torch. Needed to start.
    type: str
  environment:
    description: Environment of the run, and of this process.
    type: dict
    default: {}
  told:
    description: C(rank), C(world), C(meet) (address and port of rank 0) and C(device).
    type: dict
    default: {}
  script:
    description: The program, which the action plugin of this name reads on the controller.
    type: str
  limit_s:
    description: Seconds after which the process is ended.
    type: int
    default: 90
seealso:
  - module: torchlan.nanochat.link_probe
"""

EXAMPLES = r"""
- name: Start the exchange
  torchlan.nanochat.collective:
    python: /opt/venv/bin/python
    told: {rank: 0, world: 2, meet: "192.0.2.36:29500", device: cpu}
  register: started

- name: What came of it
  torchlan.nanochat.collective:
    job: "{{ started.job }}"
"""

RETURN = r"""
job:
  description: To ask for the answer with.
  returned: while it goes on
  type: str
progress:
  description: One line for a person.
  returned: while it goes on
  type: str
exchange:
  description:
    - C(right) (whether the sum was right), C(seconds) of one exchange of 8 MB and C(mbps) each way.
    - V(null) when it did not work; then C(problem) is its last line, and empty when there was no answer in time.
  returned: when it is over
  type: dict
  sample: {right: true, seconds: 0.281, mbps: 477.0}
problem:
  description: Why there is no result.
  returned: when it is over
  type: str
"""

import json
import signal
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchlan.nanochat.plugins.module_utils.background import Progress, follow


def exchange(params: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Run the process; its last line is the answer, or why there is none."""
    told = {**params["told"], "limit_s": params["limit_s"]}
    env = {
        **{name: str(value) for name, value in params["environment"].items()},
        "TORCHLAN_COLLECTIVE": json.dumps(told),
    }
    code, text = progress.run([params["python"], "-c", params["script"]], env, "/")
    lines = [line for line in text.splitlines() if line.strip()]
    last = lines[-1].strip() if lines else ""
    try:
        found = json.loads(last)
    except ValueError:
        found = None
    if code == 0 and isinstance(found, dict):
        return {"exchange": found, "problem": ""}
    if code == -signal.SIGALRM:
        return {"exchange": None, "problem": ""}
    return {"exchange": None, "problem": last[:300] or "it ended with %d" % code}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "job": {"type": "str"},
            "python": {"type": "str"},
            "environment": {"type": "dict", "default": {}},
            "told": {"type": "dict", "default": {}},
            "script": {"type": "str"},
            "limit_s": {"type": "int", "default": 90},
        },
        required_one_of=[("job", "python")],
        required_together=[("python", "script")],
        supports_check_mode=True,
    )
    params = module.params
    try:
        found = follow(params["job"], lambda progress: exchange(params, progress), 4.0 if params["job"] else 0.0)
    except (OSError, RuntimeError) as problem:
        found = {"exchange": None, "problem": str(problem)}
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
