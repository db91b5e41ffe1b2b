"""The plots, as PNG. matplotlib is needed here and nowhere else, and imported only when something is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import TYPE_CHECKING

from onefold._simulate.experiments import (
    FAILURES,
    FIFO,
    PROCESSES,
    USUAL_RPS,
    USUAL_STALL_S,
    Storm,
    closed_form,
)
from onefold._simulate.scenarios import WARM_UP_S
from onefold._simulate.tables import names
from onefold.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOTHING_RPS = 0.5
"""Less than this is nothing."""
SHOWN_AFTER_S = 60
DPI = 72
COLOURS = 128


def draw_plots(storm: Storm) -> Mapping[str, bytes]:
    """PNG files, by the name of what they show."""
    pictures = {"failures": _failures(storm), "stall": _stall(storm), "overload": _overload(storm)}
    return {name: _png(figure) for name, figure in pictures.items()}


def require_matplotlib() -> None:
    """Before anything is run: a minute of computing must not end in a missing module."""
    _figure(1, 1)


def _figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ConfigurationError("plots need matplotlib: pip install 'onefold[storm]'") from error
    return Figure(figsize=(width, height), layout="constrained")


def _png(figure: Figure) -> bytes:
    from PIL import Image  # comes with matplotlib

    whole, small = BytesIO(), BytesIO()
    figure.savefig(whole, format="png", dpi=DPI)
    # A few lines need a few colours: that is a third of the size.
    image = Image.open(whole).convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE)
    image.save(small, format="png", optimize=True)
    return small.getvalue()


def _failures(storm: Storm) -> Figure:
    figure = _figure(12, 3.6)
    left, right = figure.subplots(1, 2)
    for name in names(storm):
        cells = [cell for cell in storm.failures if cell.policy == name and cell.rps == USUAL_RPS]
        left.plot([cell.failure for cell in cells], [cell.success for cell in cells], marker=".", label=name)
        right.plot([cell.failure for cell in cells], [cell.load for cell in cells], marker=".")
    exact = [closed_form(failure, 3) for failure in FAILURES]
    left.plot(FAILURES, [success for success, _ in exact], "k:", label="3 retries, by arithmetic")
    right.plot(FAILURES, [load for _, load in exact], "k:")
    left.set(xlabel="failing attempts", ylabel="calls that succeed")
    right.set(xlabel="failing attempts", ylabel="attempts per call")
    figure.legend(*left.get_legend_handles_labels(), fontsize="small", loc="outside right upper")
    return figure


def _stall(storm: Storm) -> Figure:
    figure = _figure(14, 5.5)
    axes = figure.subplots(2, len(PROCESSES), sharex=True, sharey="row", squeeze=False)
    over = WARM_UP_S + USUAL_STALL_S
    last = over + SHOWN_AFTER_S
    seconds = [second - over for second in range(last)]
    for column, processes in enumerate(PROCESSES):
        goodput, load = axes[0][column], axes[1][column]
        for cell in storm.stalls:
            if (cell.server, cell.stall_s, cell.processes) == (FIFO.name, USUAL_STALL_S, processes):
                goodput.plot(seconds, cell.goodput_rps[:last], linewidth=1, label=cell.policy)
                load.plot(seconds, cell.load_rps[:last], linewidth=1)
        for axis in (goodput, load):
            axis.axvspan(-USUAL_STALL_S, 0, color="0.9")
        goodput.set_title(f"{processes} process{'es' * (processes > 1)}")
        load.set_xlabel("seconds after the stall")
    axes[0][0].set_ylabel("calls that succeed per second")
    axes[1][0].set_ylabel("attempts per second")
    axes[0][-1].legend(fontsize="small", loc="lower right")
    return figure


def _overload(storm: Storm) -> Figure:
    figure = _figure(12, 3.6)
    axis = figure.subplots()
    servers = [server.name for server in storm.effort.servers]
    policies = names(storm)
    width = 0.8 / len(policies)
    for number, policy in enumerate(policies):
        after = {cell.server: cell.after_rps for cell in storm.overloads if cell.policy == policy}
        places = [index + number * width for index in range(len(servers))]
        bars = axis.bar(places, [after[server] for server in servers], width, label=policy, linewidth=2)
        for bar in bars:
            # A bar without height is a result, and the worst one: its edge shows that it is there.
            bar.set_edgecolor(bar.get_facecolor())
            if bar.get_height() < NOTHING_RPS:
                axis.annotate(
                    "0",
                    (bar.get_x() + width / 2, bar.get_height()),
                    xytext=(0, 2),
                    textcoords="offset points",
                    ha="center",
                    fontsize="x-small",
                    color=bar.get_facecolor(),
                )
    axis.set_xticks([index + 0.4 - width / 2 for index in range(len(servers))], servers, fontsize="small")
    axis.set_ylabel("goodput after the overload")
    figure.legend(fontsize="small", loc="outside right upper")
    return figure
