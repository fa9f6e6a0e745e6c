"""A kernel timer that ends this process, whatever its code does and even while it is stopped.

SIGKILL on a CLOCK_BOOTTIME timer (timer_create(2)): it can be neither caught nor blocked, it reaches a process that
SIGSTOP froze, and it counts while the machine sleeps. Not inherited by children.
"""

import ctypes
import os
import signal
import time

_LIBC = ctypes.CDLL(None, use_errno=True)
_SIGEV_SIGNAL = 0
_TIMER_ABSTIME = 1


class _SigEvent(ctypes.Structure):
    _fields_ = [  # sigevent(7): 64 bytes on Linux
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("pad", ctypes.c_int * 12),
    ]


class _TimeSpec(ctypes.Structure):
    _fields_ = [("sec", ctypes.c_long), ("nsec", ctypes.c_long)]


class _TimerSpec(ctypes.Structure):
    _fields_ = [("interval", _TimeSpec), ("value", _TimeSpec)]


class Deadline:
    """One timer of this process. Moments are seconds of CLOCK_BOOTTIME (`runs.clock.boottime`)."""

    def __init__(self) -> None:
        event = _SigEvent(signo=signal.SIGKILL, notify=_SIGEV_SIGNAL)
        self._timer = ctypes.c_void_p()
        _check(_LIBC.timer_create(time.CLOCK_BOOTTIME, ctypes.byref(event), ctypes.byref(self._timer)))

    def arm(self, at: float) -> None:
        """Be killed at this moment, unless armed anew or disarmed before; one in the past kills at once."""
        whole = max(int(at), 0)
        nsec = max(int((at - whole) * 1e9), 1)
        self._set(_TimerSpec(value=_TimeSpec(whole, nsec)))

    def disarm(self) -> None:
        self._set(_TimerSpec())

    def _set(self, spec: _TimerSpec) -> None:
        _check(_LIBC.timer_settime(self._timer, _TIMER_ABSTIME, ctypes.byref(spec), None))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
