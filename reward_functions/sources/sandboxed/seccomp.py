"""A filter for system calls: no new processes, no programs, no sockets, no shared memory, no signals to others.

What a program gets without it is little already (bubblewrap takes away network, files and capabilities). The filter
makes a fork bomb impossible rather than survivable, bounds memory by one process's limit, and keeps the kernel's less
travelled paths away from the program. Threads stay, since programs use them for a larger stack.
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

# All numbers are those of x86-64, 0xC000003E for the kernel's audit.
AUDIT, CLONE, CLONE3 = 0xC000003E, 56, 435
NEWER = 450  # from here on, `DENIED` knows no system call
# fcntl's F_SETOWN F_SETSIG F_SETOWN_EX F_SETLEASE F_NOTIFY and ioctl's FIOASYNC FIOSETOWN SIOCSPGRP make the kernel
# send a signal of the program's choice, SIGSTOP and SIGKILL included, to a process of its choice.
SIGNALLING = {72: (8, 10, 15, 1024, 1026), 16: (0x5452, 0x8901, 0x8902)}
# What a program may do to itself alone, so that it cannot end, limit or slow the runner: kill tgkill, to which 0 is not
# the process itself; prlimit64 sched_setparam sched_setscheduler sched_setaffinity sched_setattr.
KILLS, OWN = (62, 234), (302, 142, 144, 203, 314)
# A line each: execve execveat ptrace socket shmget shmat shmctl semget msgget mq_open memfd_create process_vm_readv
# process_vm_writev kcmp, personality pivot_root chroot acct mount umount2 swapon reboot init_module finit_module
# delete_module kexec_file_load add_key request_key keyctl, unshare setns vmsplice perf_event_open fanotify_init
# name_to_handle_at open_by_handle_at bpf userfaultfd tkill rt_sigqueueinfo rt_tgsigqueueinfo, setpriority ioprio_set
# migrate_pages move_pages syslog fork vfork, pidfd_send_signal io_uring and the mount calls, pidfd_open pidfd_getfd
# process_madvise mount_setattr quotactl_fd memfd_secret process_mrelease.
DENIED = [
    *(59, 322, 101, 41, 29, 30, 31, 64, 68, 240, 319, 310, 311, 312),
    *(135, 155, 161, 163, 165, 166, 167, 169, 175, 313, 176, 320, 248, 249, 250),
    *(272, 308, 278, 298, 300, 303, 304, 321, 323, 200, 129, 297),
    *(141, 251, 256, 279, 103, 57, 58),
    *(424, 425, 426, 427, 428, 429, 430, 431, 432, 433, 434, 438, 440, 442, 443, 447, 448),
]


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
    for at, number in enumerate(DENIED):
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
