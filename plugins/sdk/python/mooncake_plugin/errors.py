"""The error that calls raise."""

from . import v1


class Error(Exception):
    """Why a call did not do its work. code is a v1.ERROR_CODE_...; the message is one line for people."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code

    def message(self):
        """The error as the protocol has it."""
        return v1.Error(code=self.code, message=str(self))
