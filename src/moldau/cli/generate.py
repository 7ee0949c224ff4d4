"""`moldau generate`: write files for the tools that run and watch a cluster."""

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from moldau.cli.errors import usage_error
from moldau.cli.options import Json
from moldau.cli.output import show_json

app = typer.Typer(help="Write files for Prometheus, Grafana and systemd.", no_args_is_help=True)

JOB_DEFAULT: Final = "moldau"
LAG_DEFAULT: Final = 10_000
DATA_DEFAULT: Final = Path("/var/lib/moldau")

Job = Annotated[str, typer.Option("--job", metavar="NAME", help="The job under which Prometheus scrapes this cluster.")]


@app.callback()
def generate() -> None:
    """Write files for Prometheus, Grafana and systemd to standard output."""


@app.command()
def alerts(
    job: Job = JOB_DEFAULT,
    lag: Annotated[
        int, typer.Option("--lag", min=0, help="Alert on a group that is more records behind, and falls back.")
    ] = LAG_DEFAULT,
    json: Json = False,
) -> None:
    """Print alerting rules for Prometheus. Save them, and name the file under rule_files."""
    from moldau.cli.alert_rules import alert_rules, as_yaml, rule_file

    rules = alert_rules(_checked(job), lag)
    if json:
        show_json(rule_file(rules))
    else:
        print(as_yaml(rules), end="")


@app.command()
def grafana(job: Job = JOB_DEFAULT) -> None:
    """Print a dashboard, as JSON, for Dashboards > New > Import in Grafana."""
    from moldau.cli.grafana_dashboard import dashboard

    show_json(dashboard(_checked(job)))


@app.command()
def systemd(
    program: Annotated[
        Path | None, typer.Option("--program", metavar="FILE", help="The installed moldau. [the one that runs]")
    ] = None,
    data: Annotated[Path, typer.Option("--data", "-d", metavar="DIRECTORY", help="The data directory.")] = DATA_DEFAULT,
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="A settings file.")] = None,
    user: Annotated[str, typer.Option("--user", metavar="NAME", help="The user that runs it.")] = "moldau",
) -> None:
    """Print a hardened systemd unit. Save it as /etc/systemd/system/moldau.service."""
    from moldau.cli.systemd_unit import SystemdUnit

    installed = program or Path(sys.executable).parent / "moldau"
    print(SystemdUnit(installed, data, config, user).text, end="")


def _checked(job: str) -> str:
    if not job or not job.isprintable():
        raise usage_error(f"--job {job!r}: write the job_name of Prometheus, for example {JOB_DEFAULT}")
    return job
