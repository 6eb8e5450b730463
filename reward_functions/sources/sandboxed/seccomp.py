"""A filter for system calls: no new processes, no programs, no network sockets, no shared memory, no signals to others.

Bubblewrap alone already takes away network, files and capabilities. The filter also forbids new processes: there
is no fork bomb, and the memory limit, which the kernel applies to each process, holds for the whole program. It also
denies system calls that are rarely used and more likely to have holes. Threads stay allowed, since programs use them
for a larger stack.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

CLONE_THREAD = 0x10000
X32 = 0x40000000
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # BPF's ld|abs, jeq, jge, jset, ret
NUMBER, ARCHITECTURE, FIRST_ARGUMENT, SECOND_ARGUMENT = 0, 4, 16, 24  # offsets in the kernel's struct seccomp_data
KILL, ALLOW, ERROR = 0x80000000, 0x7FFF0000, 0x00050000

# All system call numbers are x86-64's, whose audit architecture is 0xC000003E.
AUDIT, CLONE, CLONE3 = 0xC000003E, 56, 435
NEWER = 450  # `DENIED` lists no system call from this number on
# fcntl's F_SETOWN F_SETSIG F_SETOWN_EX F_SETLEASE F_NOTIFY and ioctl's FIOASYNC FIOSETOWN SIOCSPGRP make the kernel
# send a signal of the program's choice, SIGSTOP and SIGKILL included, to a process of its choice.
SIGNALLING = {72: (8, 10, 15, 1024, 1026), 16: (0x5452, 0x8901, 0x8902)}
# System calls that a program may use on itself alone, so that it cannot end, limit or slow the runner: kill tgkill,
# where 0 does not mean the process itself; prlimit64 sched_setparam sched_setscheduler sched_setaffinity sched_setattr.
KILLS, OWN = (62, 234), (302, 142, 144, 203, 314)
_TABLE = """
execve 59  execveat 322  ptrace 101  socket 41  shmget 29  shmat 30  shmctl 31  semget 64  msgget 68  mq_open 240
memfd_create 319  process_vm_readv 310  process_vm_writev 311  kcmp 312  personality 135  pivot_root 155  chroot 161
acct 163  mount 165  umount2 166  swapon 167  reboot 169  init_module 175  finit_module 313  delete_module 176
kexec_file_load 320  add_key 248  request_key 249  keyctl 250  unshare 272  setns 308  vmsplice 278
perf_event_open 298  fanotify_init 300  name_to_handle_at 303  open_by_handle_at 304  bpf 321  userfaultfd 323
tkill 200  rt_sigqueueinfo 129  rt_tgsigqueueinfo 297  setpriority 141  ioprio_set 251  migrate_pages 256
move_pages 279  syslog 103  fork 57  vfork 58  pidfd_send_signal 424  io_uring_setup 425  io_uring_enter 426
io_uring_register 427  open_tree 428  move_mount 429  fsopen 430  fsconfig 431  fsmount 432  fspick 433
pidfd_open 434  pidfd_getfd 438  process_madvise 440  mount_setattr 442  quotactl_fd 443  memfd_secret 447
process_mrelease 448
"""
_WORDS = _TABLE.split()
DENIED = dict(zip(_WORDS[::2], map(int, _WORDS[1::2])))  # noqa: B905


def program(pid: int) -> list[tuple[int, int, int, int]]:
    """The filter as BPF instructions (code, jump if true, jump if false, constant) for the process `pid`."""
    lines = [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, AUDIT),
        (RETURN, 0, 0, KILL),  # another ABI has other numbers
        (LOAD, 0, 0, NUMBER),
        (AT_LEAST, 0, 1, X32),
        (RETURN, 0, 0, KILL),
        (EQUAL, 1, 0, CLONE3),  # its flags cannot be seen; the C library falls back on clone
        (AT_LEAST, 0, 1, NEWER),
        (RETURN, 0, 0, ERROR | errno.ENOSYS),
        (EQUAL, 0, 4, CLONE),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        (ANY_BIT, 0, 1, CLONE_THREAD),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, ERROR | errno.EPERM),
    ]
    for number, commands in SIGNALLING.items():
        lines += [(EQUAL, 0, len(commands) + 3, number), (LOAD, 0, 0, SECOND_ARGUMENT)]
        lines += [(EQUAL, len(commands) - at, 0, command) for at, command in enumerate(commands)]
        lines += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, ERROR | errno.EPERM)]
    for number in (*KILLS, *OWN):
        lines += [
            (EQUAL, 0, 5, number),
            (LOAD, 0, 0, FIRST_ARGUMENT),
            (EQUAL, 2, 0, pid),
            (EQUAL, 1, 0, pid if number in KILLS else 0),
            (RETURN, 0, 0, ERROR | errno.EPERM),
            (RETURN, 0, 0, ALLOW),
        ]
    for at, number in enumerate(DENIED.values()):
        lines.append((EQUAL, len(DENIED) - at, 0, number))  # to the last line
    return [*lines, (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, ERROR | errno.EPERM)]


def install() -> None:
    """Put the filter on this process, for good. Raises OSError: the kernel has no seccomp."""
    instructions = program(os.getpid())
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in instructions))
    head = ctypes.create_string_buffer(struct.pack("@HP", len(instructions), ctypes.addressof(code)))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    nothing = ctypes.c_ulong(0)
    if prctl(PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), nothing, nothing, nothing) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")
    address = ctypes.c_ulong(ctypes.addressof(head))
    if prctl(PR_SET_SECCOMP, ctypes.c_ulong(SECCOMP_MODE_FILTER), address, nothing, nothing) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_SECCOMP)")
