# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The catalogue: what torch, Gloo, NCCL, the kernel and nanochat say when something breaks, and what it means.

One table for everybody: modules on hosts, the controller, and the runner, in whose zip this file lies too. Each entry has
real messages as examples, and each example is a test. To teach the collection a message, add it to the entry of its
cause.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Message(NamedTuple):
    """A message that is known."""

    code: str  # of module_utils/causes.py
    match: tuple[str, ...]
    what: str
    fix: str
    examples: tuple[str, ...]
    # Whether it only tells that something broke elsewhere.
    consequence: bool = False


class Signal(NamedTuple):
    """What it means that a process ended by a signal."""

    what: str
    fix: str
    code: str = "rank_died"
    consequence: bool = False


# The first that matches counts: what is special stands before what is general.
MESSAGES = (
    Message(
        "disk_full",
        (
            r"No space left on device",
            r"Disk quota exceeded",
            r"PytorchStreamWriter failed",
            r"inline_container\.cc:\d+\] ?\. (unexpected pos|file write failed|PytorchStreamWriter)",
        ),
        "the disk is full, so a file could not be written",
        "free space below nanochat_base_dir there (df -h), then go on from the last whole checkpoint",
        (
            "OSError: [Errno 28] No space left on device: '/home/ann/.cache/nanochat/base_checkpoints/d4/model_000010.pt'",
            "RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598",
            "OSError: [Errno 122] Disk quota exceeded",
            "RuntimeError: PytorchStreamWriter failed writing file data/0: file write failed",
        ),
    ),
    Message(
        "out_of_memory",
        (
            r"unable to (allocate|open) shared memory",
            r"insufficient shared memory",
            r"Unexpected bus error encountered in worker",
        ),
        "the shared memory of the host is used up",
        "enlarge /dev/shm there (a container: --shm-size), or use fewer data workers",
        (
            "RuntimeError: DataLoader worker (pid 12) is killed by signal: Bus error. insufficient shared memory (shm)",
            "RuntimeError: unable to allocate shared memory(shm) for file </torch_77_1>: Success (0)",
            "RuntimeError: unable to open shared memory object </torch_77_1> in read-write mode",
            "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shm",
        ),
    ),
    Message(
        "out_of_memory",
        (
            r"DefaultCPUAllocator: (can't|not enough)",
            r"CUDA out of memory",
            r"CUDA error: out of memory",
            r"^(torch\.)?(cuda\.)?OutOfMemoryError",
            r"^(\w+\.)*MemoryError",
            r"Cannot allocate memory",
        ),
        "it ran out of memory",
        "halve device-batch-size (the total stays the same by gradient accumulation), or max-seq-len, or depth",
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you "
            "tried to allocate 4503599627370496 bytes.",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
            "RuntimeError: CUDA error: out of memory",
            "OSError: [Errno 12] Cannot allocate memory",
            "MemoryError",
        ),
    ),
    Message(
        "limit_reached",
        (
            r"Too many open files",
            r"Resource temporarily unavailable",
            r"can't start new thread",
        ),
        "a limit of the host is reached (ulimit -a)",
        "raise the limit for this user in /etc/security/limits.conf there, or run fewer processes",
        (
            "OSError: [Errno 24] Too many open files",
            "RuntimeError: can't start new thread",
            "BlockingIOError: [Errno 11] Resource temporarily unavailable",
        ),
    ),
    Message(
        "port_in_use",
        (
            r"EADDRINUSE",
            r"[Aa]ddress already in use",
        ),
        "the rendezvous port is taken by another program",
        "preflight.yml names who holds it; end that, or set nanochat_master_port",
        (
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29790, name: EADDRINUSE",
            "OSError: [Errno 98] Address already in use",
        ),
    ),
    Message(
        "interface_unknown",
        (
            r"Unable to find address for: (\S+)",
            r"Bootstrap : no socket interface found",
        ),
        "the network interface that was named has no address there",
        "leave nanochat_socket_ifname unset, or use a name from ip -brief address on that host",
        (
            "RuntimeError: [enforce fail at ../gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find address for: eth77",
            "NCCL WARN Bootstrap : no socket interface found",
        ),
    ),
    Message(
        "address_unusable",
        (r"connectFullMesh failed.*127\.\d+\.\d+\.\d+",),
        "a host announced its loopback address to the others (its own name is 127.0.1.1 in /etc/hosts)",
        "leave GLOO_SOCKET_IFNAME to the collection: it names the interface, and the host's own name is not asked",
        (
            "RuntimeError: Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:144] no error, remote=[127.0.1.1]:24137",
        ),
    ),
    Message(
        "not_distributed",
        (r"Work::getFuture not implemented",),
        "Gloo lacks what nanochat's optimizer asks for, and the runner was not there to add it",
        "leave nanochat_runner: true",
        ("RuntimeError: Work::getFuture not implemented.",),
    ),
    Message(
        "arguments_differ",
        (
            r"op\.preamble\.length <= op\.nbytes",
            r"Detected mismatch between collectives on ranks",
        ),
        "the ranks sent each other tensors of different sizes: their arguments or their code differ",
        "set training options for the whole group, never per host; compare the commits",
        (
            "[enforce fail at ../third_party/gloo/gloo/transport/tcp/pair.cc:453] op.preamble.length <= op.nbytes. 4000 vs 40",
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: X, but Rank 1 is running Y",
        ),
    ),
    Message(
        "setting_invalid",
        (
            r"ambiguous option: --run could match",
            r"torchrun: error: (.*)",
            r"run\.py: error: (.*)",
        ),
        "torchrun does not understand its command line",
        "options of the script belong into nanochat_train_args, behind the -- that the collection writes",
        (
            "torchrun: error: ambiguous option: --run could match --run-path, --run_path",
            "run.py: error: unrecognized arguments: --nodes 2",
        ),
    ),
    Message(
        "setting_invalid",
        (
            r"invalid device ordinal",
            r"Duplicate GPU detected",
        ),
        "more processes than GPUs, or two processes on one GPU",
        "nproc_per_node of that host: at most the number of its GPUs",
        (
            "RuntimeError: CUDA error: invalid device ordinal",
            "ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
        ),
    ),
    Message(
        "device_unusable",
        (
            r"CUDA driver version is insufficient",
            r"no kernel image is available",
            r"Found no NVIDIA driver",
            r"Torch not compiled with CUDA enabled",
            r"[Dd]river/library version mismatch",
            r"CUDA error: (unspecified launch failure|an illegal memory access|uncorrectable ECC)",
        ),
        "the GPU or its driver does not work with this torch",
        "nvidia-smi on that host; a reboot after a driver update; a torch built for that driver and GPU",
        (
            "RuntimeError: Found no NVIDIA driver on your system.",
            "AssertionError: Torch not compiled with CUDA enabled",
            "RuntimeError: The NVIDIA driver on your system is too old: CUDA driver version is insufficient for CUDA runtime",
            "RuntimeError: CUDA error: no kernel image is available for execution on the device",
            "Failed to initialize NVML: Driver/library version mismatch",
            "RuntimeError: CUDA error: an illegal memory access was encountered",
        ),
    ),
    Message(
        "compiler_missing",
        (
            r"InvalidCxxCompiler",
            r"No working C\+\+ compiler",
            r"fatal error: Python\.h",
            r"Failed to find C compiler",
        ),
        "torch.compile finds no C++ compiler, or no headers of Python",
        "install.yml brings them; or TORCHDYNAMO_DISABLE: 1 in nanochat_env, which trains slower",
        (
            "InductorError: InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config.cpp.cxx: (None, '/x')",
            "/tmp/torchinductor/main.c:4:10: fatal error: Python.h: No such file or directory",
            "RuntimeError: Failed to find C compiler. Please specify via CC environment variable.",
        ),
    ),
    Message(
        "tokenizer_missing",
        (
            r"No such file or directory: .*tokenizer(\.pkl|_config|/)",
            r"No such file or directory: .*token_bytes\.pt",
        ),
        "there is no tokenizer",
        "dataset.yml makes it on the master and brings it to every host",
        (
            "FileNotFoundError: [Errno 2] No such file or directory: '/home/ann/.cache/nanochat/tokenizer/tokenizer.pkl'",
            "FileNotFoundError: [Errno 2] No such file or directory: '/home/ann/.cache/nanochat/tokenizer/token_bytes.pt'",
        ),
    ),
    Message(
        "checkpoint_missing",
        (r"No such file or directory: .*(model|meta|optim)_\d+\S*\.(pt|json)",),
        "a file of the checkpoint is not on this host",
        "resume.yml brings the checkpoint to where every rank needs it",
        (
            "FileNotFoundError: [Errno 2] No such file or directory: '/home/ann/.cache/nanochat/base_checkpoints/d4/model_000010.pt'",
        ),
    ),
    Message(
        "checkpoint_unusable",
        (
            r"PytorchStreamReader failed",
            r"Error\(s\) in loading state_dict",
            r"size mismatch for ",
        ),
        "the checkpoint cannot be read, or belongs to another model",
        "resume.yml looks for the newest whole one; the model's options must be those of the run that wrote it",
        (
            "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
            "RuntimeError: Error(s) in loading state_dict for GPT:",
            "size mismatch for transformer.wte.weight: copying a param with shape torch.Size([32768, 256]) from checkpoint",
        ),
    ),
    Message(
        "environment_missing",
        (
            r"ModuleNotFoundError: No module named '([^']+)'",
            r"No module named (torch|nanochat|scripts)\b",
            r"torchrun: (command )?not found",
            r"cannot open shared object file",
        ),
        "the Python environment lacks a module or a library",
        "install.yml",
        (
            "ModuleNotFoundError: No module named 'nanochat'",
            "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
            "bash: torchrun: command not found",
            "/usr/bin/python3: No module named torch",
        ),
    ),
    Message(
        "path_invalid",
        (r"(Permission denied|Read-only file system): ('[^']+')",),
        "a file or folder cannot be written or read by this user",
        "correct its owner on that host, or name another nanochat_base_dir",
        ("PermissionError: [Errno 13] Permission denied: '/srv/nanochat/base_checkpoints'",),
    ),
    Message(
        "rank_missing",
        (r"Timed out after \d+ seconds waiting for clients\. (\d+)/(\d+) clients joined",),
        "not every host joined the rendezvous in time",
        "look at the missing host: was its agent started, does it reach the master's port, is node_rank its own?",
        ("torch.distributed.DistStoreError: Timed out after 6 seconds waiting for clients. 1/2 clients joined.",),
        consequence=True,
    ),
    Message(
        "store_lost",
        (
            r"client socket has (timed out|failed to connect).*\(([^,]+), (\d+)\)",
            r"Failed to recv, got 0 bytes",
            r"recvValue failed",
            r"Connection was likely closed\. Did the remote server shutdown",
        ),
        "torchrun's store on the master was not reached",
        "look at the master: did its agent end, or is its port closed for this host?",
        (
            "torch.distributed.DistNetworkError: The client socket has timed out after 5000ms while trying to connect to (192.0.2.36, 29500).",
            "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?",
            "[W1201 TCPStore.cpp:115] recvValue failed on SocketImpl(fd=3): Connection reset by peer",
        ),
        consequence=True,
    ),
    Message(
        "peer_lost",
        (
            r"(RuntimeError|Dist\w+Error|gloo|nccl|NCCL).*(Connection (closed|reset) by peer|Broken pipe|[Ss]ocket closed)",
            r"(RuntimeError|Dist\w+Error|gloo|nccl|NCCL).*(Connection refused|No route to host|Network is unreachable)",
            r"Timed out waiting \d+ms for (recv|send) operation",
            r"Application timeout caused pair closure",
            r"ncclRemoteError",
            r"ncclSystemError",
            r"Watchdog caught collective operation timeout",
        ),
        "it lost the connection to another rank",
        "the cause is elsewhere: look at the rank that ended first, or at the link between the two",
        (
            "RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:36561.",
            "RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 5000ms for recv operation to complete",
            "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:275, ncclRemoteError: A call failed possibly due to a network error",
            "RuntimeError: [../gloo/transport/tcp/pair.cc:799] connect [192.0.2.37]:4711: No route to host",
            "RuntimeError: Application timeout caused pair closure",
            "NCCL WARN Call failed: ncclSystemError: System call (e.g. socket, malloc) or external library call failed",
            "[rank1]:[E] [PG 0 Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE)",
        ),
        consequence=True,
    ),
    Message(
        "not_proven",
        (
            r"SignalException: Process \d+ got signal: (15|2|1)",
            r"^KeyboardInterrupt",
        ),
        "it was told to end",
        "nothing to do if you ended it; otherwise look for who did (a logout, a shutdown, stop.yml)",
        (
            "SignalException: Process 4242 got signal: 15",
            "KeyboardInterrupt",
        ),
        consequence=True,
    ),
)

SIGNALS = {
    4: Signal("it met an instruction that this CPU does not have (SIGILL)", "a torch built for this CPU"),
    6: Signal("it aborted (SIGABRT)", "the lines before it in train.log say why"),
    7: Signal(
        "a memory-mapped file could not be read or written (SIGBUS)", "is the disk or /dev/shm of that host full?"
    ),
    9: Signal(
        "it was killed (SIGKILL)",
        "somebody or something killed it: the kernel log (sudo dmesg) tells of the out-of-memory killer",
    ),
    11: Signal(
        "it crashed (SIGSEGV)",
        "run again; if it stays, compare torch and drivers with a host that works; test the memory",
    ),
    15: Signal("it was told to end (SIGTERM)", "nothing to do if you ended it", code="not_proven", consequence=True),
}

# Lines that a healthy run prints, too: pattern and example.
NOISE = (
    (
        r"(Future|Deprecation|User)Warning",
        "/opt/venv/lib/python3.11/site-packages/torch/jit.py:12: FutureWarning: `x` is deprecated",
    ),
    (
        r"^\[[WI]\d* .*hostname.* err=-3",
        "[W1130 21:14:02.917 socket.cpp:209] [c10d] The hostname of the client socket cannot be retrieved. err=-3",
    ),
    (
        r"Setting OMP_NUM_THREADS environment variable",
        "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default",
    ),
    (r"^\*{10,}$", "*****************************************"),
    (r"^[=-]{10,}$", "============================================================"),
    (
        r"Sending process \d+ closing signal SIG",
        "W1201 03:43:58.601000 28316 api.py:1028] Sending process 28345 closing signal SIGTERM",
    ),
    (
        r"process group has NOT been destroyed",
        "[rank0]:[W1201 03:44:01] Warning: process group has NOT been destroyed before we destruct",
    ),
    (
        r"destroy_process_group\(\) was not called",
        "[rank0]:[W1201 03:44:01] Warning: WARNING: destroy_process_group() was not called",
    ),
    (r"exit barrier", "E1130 21:20:04.000000 77 api.py:1001] Error waiting on exit barrier. Elapsed: 300.1 seconds"),
)

# Causes that may be gone at the next start: a peer, a link or a process was lost.
HEALS = frozenset(
    (
        "agent_lost", "backend_failed", "collective_stuck", "ended_from_outside", "exception", "link_blocked", "link_lost",
        "peer_lost", "rank_died", "rank_frozen", "rank_missing", "rank_silent", "start_timeout", "store_lost",
    )
)  # fmt: skip
STARTS_AGAIN = "starts again"  # a line of the log; what stands before it is of an earlier start

_MATCHES = [(re.compile("|".join(entry.match), re.MULTILINE), entry) for entry in MESSAGES]
_NOISE = re.compile("|".join("(?:%s)" % pattern for pattern, _example in NOISE))
# Gloo prints the port of a pair as it is in the packet, on hosts that keep bytes the other way round.
_GLOO_PORT = re.compile(r"(gloo/transport/tcp/pair\.cc.*?\]:)(\d{1,5})\b")


def classify(text: str) -> Message | None:
    """The entry of a message; None for one that nobody has met yet."""
    return next((entry for pattern, entry in _MATCHES if pattern.search(text)), None)


def is_noise(line: str) -> bool:
    """Whether a line of a log says nothing about a failure."""
    return bool(_NOISE.search(line))


def readable(text: str) -> str:
    """The text with Gloo's ports as C(ss) shows them: it prints 36126 as 7821."""
    return _GLOO_PORT.sub(lambda found: found[1] + str(_swapped(int(found[2]))), text)


def _swapped(port: int) -> int:
    return (port & 0xFF) << 8 | port >> 8 if port < 65536 else port
