"""What is seen of a fetch or a load without a terminal."""

import io

from rich.console import Console

from takt.server.progress import LINE_SECONDS, show_progress


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_without_a_terminal_a_quick_stage_is_silent_and_a_slow_one_speaks_now_and_then() -> None:
    text, clock = io.StringIO(), Clock()
    with show_progress(Console(file=text), clock) as report:
        report("Loading", 0, 40_000_000)
        clock.now += LINE_SECONDS / 2
        report("Loading", 40_000_000, 40_000_000)
        assert text.getvalue() == ""
        report("Fetching m", 0, 200_000_000)
        for done in (50_000_000, 60_000_000, 150_000_000):
            clock.now += LINE_SECONDS * 0.75
            report("Fetching m", done, 200_000_000)
    assert text.getvalue() == "takt: Fetching m (200 MB): 30 %\n"


def test_a_stage_without_a_total_has_no_share() -> None:
    text, clock = io.StringIO(), Clock()
    with show_progress(Console(file=text), clock) as report:
        report("Waiting", 0, 0)
        clock.now += LINE_SECONDS
        report("Waiting", 0, 0)
    assert text.getvalue() == "takt: Waiting\n"


def test_a_terminal_gets_a_bar_with_the_size() -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=100)
    with show_progress(console) as report:
        report("Fetching m", 0, 0)
        report("Fetching m", 100_000_000, 200_000_000)
    assert "Fetching m (200 MB)" in text.getvalue()
    assert "50 %" in text.getvalue()
