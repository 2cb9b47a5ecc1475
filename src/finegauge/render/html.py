"""A report as one HTML file that needs nothing beside itself: no script, no request, no font."""

from typing import TYPE_CHECKING

from finegauge.render.plots.drawing import check_matplotlib, page_svg
from finegauge.render.templates import environment, stylesheet

if TYPE_CHECKING:
    from finegauge.profile import Profile
    from finegauge.render.report import Report


def profile_page(profile: "Profile") -> str:
    """Return the whole page about one run, predicted or measured.

    Raises: UnsupportedError where jinja2 or matplotlib is missing.
    """
    from finegauge.render.run_report import profile_report

    return html_page(profile_report(profile))


def html_page(report: "Report") -> str:
    """Return `report` as the text of one HTML file.

    Raises: UnsupportedError where jinja2 or matplotlib is missing.
    """
    from finegauge import __version__

    template = environment().get_template("report.html")
    check_matplotlib()
    return template.render(
        report=report,
        styles=stylesheet("figures.css") + stylesheet("report.css"),
        svgs={drawing.key: page_svg(drawing) for drawing in report.drawings},
        version=__version__,
    )
