"""What an implementation can do other than answer. None of these is the adapter's or the user's mistake."""


class ImplementationFailed(Exception):
    """The implementation under test failed instead of answering (HC-CONF-01).

    `raw` is what it said, as far as it said anything; `stderr` the last lines of its standard error; `line` the file
    and line where it raised, if it says so.
    """

    def __init__(self, what: str, raw: str = "", stderr: tuple[str, ...] = (), line: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.raw = raw
        self.stderr = stderr
        self.line = line

    def __str__(self) -> str:
        last = next((line for line in reversed(self.stderr) if line.strip()), "")
        return f"{self.what}; its last words were: {last.strip()}" if last else self.what


class ImplementationRaised(ImplementationFailed):
    """It raised an exception and is still there."""


class ProcessDied(ImplementationFailed):
    """Its process has ended."""


class ProcessHung(ImplementationFailed):
    """Its process did not answer in time and was ended."""


class ProcessSpokeNonsense(ImplementationFailed):
    """Its process said something that is no answer to what it was asked, and was ended."""
