# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Steps of the module C(dataset) that nanochat's own programs do, on the master: download, train the tokenizer."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils import data, in_use
from ansible_collections.torchlan.nanochat.plugins.module_utils.data_host import TOKENIZER_FILES, DataHost
from ansible_collections.torchlan.nanochat.plugins.module_utils.data_tokenizer import place_tokenizer
from ansible_collections.torchlan.nanochat.plugins.module_utils.workdir import locked

_LOCK_S = 7200.0
_WORK = ".torchlan-tokenizer-"

# nanochat reads NANOCHAT_DATA_DIR in some forks only; so the folder is set in its module, before its program starts.
_TRAIN_TOKENIZER = """
import os, runpy, sys
folder, sys.argv = sys.argv[1], ["scripts.tok_train"] + sys.argv[2:]
sys.path.insert(0, os.getcwd())
import nanochat.dataset
nanochat.dataset.DATA_DIR = folder
runpy.run_module("scripts.tok_train", run_name="__main__", alter_sys=True)
"""
_DOWNLOAD = """
import os, runpy, sys
folder, count = sys.argv[1], int(sys.argv[2])
sys.path.insert(0, os.getcwd())
import nanochat.dataset as dataset
if os.path.realpath(dataset.DATA_DIR) == os.path.realpath(folder):
    sys.argv = ["nanochat.dataset", "-n", str(count)]
    sys.modules.pop("nanochat.dataset")
    runpy.run_module("nanochat.dataset", run_name="__main__", alter_sys=True)
elif hasattr(dataset, "download_single_file") and hasattr(dataset, "MAX_SHARD"):
    import multiprocessing
    dataset.DATA_DIR = folder
    wanted = list(range(min(count, dataset.MAX_SHARD))) + [dataset.MAX_SHARD]
    with multiprocessing.get_context("fork").Pool(4) as pool:
        raise SystemExit(0 if all(pool.map(dataset.download_single_file, wanted)) else 1)
else:
    raise SystemExit("this nanochat downloads to %s only: set nanochat_data_dir to it" % dataset.DATA_DIR)
"""
REWRITE = """
import sys
import pyarrow.parquet as parquet
source, target, groups = sys.argv[1], sys.argv[2], int(sys.argv[3])
old = parquet.ParquetFile(source)
rows = old.metadata.num_rows
if rows < groups:
    raise SystemExit("it has %d rows for %d ranks" % (rows, groups))
codec = old.metadata.row_group(0).column(0).compression.lower()
with parquet.ParquetWriter(target, old.schema_arrow, compression="none" if codec == "uncompressed" else codec) as new:
    new.write_table(old.read(), row_group_size=rows // groups)
written = parquet.ParquetFile(target).metadata
if written.num_rows != rows or written.num_row_groups < groups:
    raise SystemExit("%d rows became %d" % (rows, written.num_rows))
"""


def needs_download(host: DataHost) -> bool:
    """Whether shards of nanochat's own data set are missing. A folder with data of the user's is left alone."""
    return data.lacks_shards(host.shards(), host.given["shards"])


def download(host: DataHost) -> dict[str, Any]:
    """Get what is missing with nanochat's downloader."""
    if not _may_work(host):
        return host.result()
    with contextlib.nullcontext() if host.check_mode else locked(host.base, timeout=_LOCK_S):
        if host.given["shards"] and needs_download(host):
            _download(host)
    return host.result()


def train(host: DataHost) -> dict[str, Any]:
    """Train the tokenizer where there is none."""
    if not _may_work(host):
        return host.result()
    with contextlib.nullcontext() if host.check_mode else locked(host.base, timeout=_LOCK_S):
        if None in host.tokenizer().values():
            _train_tokenizer(host)
    return host.result()


def _may_work(host: DataHost) -> bool:
    host.causes += in_use.of_data(host.base, host.folder)
    return not host.causes


def _download(host: DataHost) -> None:
    count = host.given["shards"]
    action = "downloaded shards"
    if host.check_mode:
        host.actions.append(action)
        return
    before = host.shards()
    if not host.able("data_missing", f"{host.folder} lacks shards"):
        return
    os.makedirs(host.folder, exist_ok=True)
    host.progress.say("downloading shards")
    host.progress.folder = host.folder
    status, said = host.program(_DOWNLOAD, [host.folder, str(count)], {"NANOCHAT_BASE_DIR": host.base})
    if host.shards() != before:
        host.actions.append(action)
    # It ends with 0, too, when it could not get a file.
    if status or needs_download(host):
        there = f"{len(host.shards())} of {count + 1} shards are in {host.folder}"
        fix = "nanochat_dataset_dir: a folder with shards on the controller; or nanochat_install_env: https_proxy"
        host.bad("data_missing", f"nanochat's downloader failed, {there}: {said}", fix)


def _train_tokenizer(host: DataHost) -> None:
    action = "trained the tokenizer"
    if host.check_mode:
        host.actions.append(action)
        return
    if len(host.shards()) < 2:
        there = f"{host.folder} has {len(host.shards())} shard(s)"
        host.bad("data_missing", f"{there}; nanochat needs at least two, of which the last is for validation")
        return
    if not host.able("tokenizer_missing", f"{host.base} has no tokenizer"):
        return
    os.makedirs(host.base, exist_ok=True)
    host.progress.say("training the tokenizer")
    for name in os.listdir(host.base):
        if name.startswith(_WORK):  # of a training that was ended from outside
            shutil.rmtree(os.path.join(host.base, name), ignore_errors=True)
    # In a base folder of its own, so that a broken attempt leaves no half tokenizer.
    with tempfile.TemporaryDirectory(prefix=_WORK, dir=host.base) as work:
        words = [host.folder, *host.given["tokenizer_args"]]
        status, said = host.program(_TRAIN_TOKENIZER, words, {"NANOCHAT_BASE_DIR": work})
        made = [os.path.join(work, "tokenizer", name) for name in TOKENIZER_FILES]
        lacking = [os.path.basename(path) for path in made if not os.path.isfile(path) or not os.path.getsize(path)]
        if status or lacking:
            said = said if status else "it made no {}".format(" and no ".join(lacking))
            fix = "correct nanochat_tokenizer_args or the data"
            host.bad("tokenizer_missing", f"scripts.tok_train failed: {said}", fix)
            return
        place_tokenizer(host, dict(zip(TOKENIZER_FILES, made)))
    host.actions.append(action)
