"""What must never be seen, one name for each kind, with the place of the contract."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class What(StrEnum):
    LOST = "lost"  # an id that was answered is not known (I3)
    CAME_BACK = "came_back"  # an expired task is there again
    CHANGED = "changed"  # a terminal task was read differently (I4)
    MOVED_BACK = "moved_back"  # lastUpdatedAt, or what never changes in a task
    WRONG_RESULT = "wrong_result"  # not what the server journalled (I1)
    RAN_TWICE = "ran_twice"  # (I2)
    UNTRUE = "untrue"  # the error's words are not what happened (I2)
    UNCALLED = "uncalled"  # failed, cancelled or refused without a cause (section 4)
    KEY_SHOWN_AGAIN = "key_shown_again"  # after its answer was acknowledged (section 4)
    CANCEL_UNHEARD = "cancel_unheard"  # not terminal after the acknowledgement (section 4)
    CROSSED = "crossed"  # an answer reached another question than its own (section 2)
    NOT_TOLD = "not_told"  # a call that nobody wants runs on upstream
    NOT_TAKEN_UP = (
        "not_taken_up"  # failed after a restart, though it could be resumed or repeated (section 9)
    )
    STUCK = "stuck"  # a task, past its bounds (I6)
    NO_ANSWER = "no_answer"  # to a request, past its bounds (I6)
    SEEN_BY_STRANGER = "seen_by_stranger"  # (I5)
    MALFORMED = "malformed"  # not what a tasks method answers
    EXITED = "exited"  # by itself
    BAD_EXIT = "bad_exit"  # after SIGTERM
    BAD_LOG = "bad_log"  # an unhandled exception, or an error without a cause
    LEFT_OVER = "left_over"  # a process, a descriptor, a damaged file


@dataclass(frozen=True, slots=True)
class Violation:
    """`whose`: the label of the call, or the part of the scene."""

    what: What
    whose: str
    words: str

    def __str__(self) -> str:
        return f"{self.what} ({self.whose}): {self.words}"
