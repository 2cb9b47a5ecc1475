"""`finegauge doctor` and `completion`: what this machine has and what works on it, and its shell's help."""

import click

from finegauge.cli.run_options import say, show


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
def doctor(*, as_json: bool) -> None:
    """Show this machine's GPU, host and disk, which extras are installed, and the way to what is missing."""
    from finegauge.answers.doctor import doctor_answer
    from finegauge.render.doctor import doctor_report

    show("doctor", doctor_answer(), doctor_report, as_json=as_json)


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Print what makes SHELL complete commands, fields, GPUs and models; its first line says how."""
    from click.shell_completion import get_completion_class

    where = {
        "bash": "finegauge completion bash >> ~/.bashrc",
        "zsh": "finegauge completion zsh >> ~/.zshrc",
        "fish": "finegauge completion fish > ~/.config/fish/completions/finegauge.fish",
    }
    found = get_completion_class(shell)
    assert found is not None
    root = click.get_current_context().find_root().command
    say(f"# {where[shell]}\n{found(root, {}, 'finegauge', '_FINEGAUGE_COMPLETE').source()}")
