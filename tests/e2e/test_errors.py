"""A user's mistake is one sentence on stderr and exit code 64; ours is 70; never a traceback."""

import subprocess
import sys
from pathlib import Path

import pytest

from finegauge import cli
from finegauge.cli import COMMANDS, FIRST, GROUPS
from tests.e2e.commands import MIXTRAL, ROOT, finegauge, shell

GARBAGE = bytes(range(256)) * 40_000  # 10 MB
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(20)
)


def refused(*arguments: str) -> str:
    """Run a command that must be refused, and return its one sentence."""
    done = finegauge(*arguments)
    assert done.code == 64, done
    assert done.out == ""
    assert done.err.startswith("Error: ")
    assert len(done.err.splitlines()) == 1
    assert "Traceback" not in done.err
    return done.err


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"- just\n- a list\n",
        b"{unclosed: [",
        b"!!python/object/apply:os.system ['true']\n",
        BOMB.encode(),
        GARBAGE,
        b"\x00\x01\x02",
        b"model: llama-3-8b\n",
        b"model: no-such-model-anywhere\nmethod: lora\n",
        b"model: llama-3-8b\nmethod: lora\nmicro_batch_size: 0\n",
        b"model: llama-3-8b\nmethod: lora\nmicro_batch_size: -3\n",
        b"model: llama-3-8b\nmethod: lora\nseq_len: 99999999999999\n",
        b"model: llama-3-8b\nmethod: lora\nbatchsize: 4\n",
        b"model: llama-3-8b\nmethod: lora\nmicro_batch_size: two\n",
        b"model: llama-3-8b\nmethod: lora\ngpu: A400\n",
        b"model: llama-3-8b\nmethod: lora\ngpu: A40\nnum_gpus: 6\ntensor_parallel: 4\n",
    ],
    ids=lambda content: repr(content[:40]),
)
@pytest.mark.parametrize("command", ["estimate", "check"])
def test_a_bad_run_file(content: bytes, command: str, tmp_path: Path) -> None:
    run = tmp_path / "run.yaml"
    run.write_bytes(content)
    refused(command, str(run))


@pytest.mark.parametrize("command", ["estimate", "explain", "check", "max-batch", "max-length"])
def test_a_missing_file(command: str) -> None:
    assert "no-such-file.yaml" in refused(command, "no-such-file.yaml")


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["estimate"], "--help"),
        (["estimate", MIXTRAL, "--gpu", "A400"], "or 'A40'?"),
        (["estimate", MIXTRAL, "micro_batch=4"], "Did you mean"),
        (["estimate", MIXTRAL, "micro_batch_size=0"], "micro_batch_size"),
        (["estimate", MIXTRAL, "nonsense"], "nonsense"),
        (["estimate", MIXTRAL, "--no-such-option"], "--no-such-option"),
        (["max-batch", MIXTRAL, "--limit", "0"], "--limit"),
        (["estimete", MIXTRAL], "Did you mean 'estimate'"),
        (["estimate", MIXTRAL, "--gpu", "v100"], "bf16"),
    ],
)
def test_a_bad_question(arguments: list[str], hint: str) -> None:
    assert hint in refused(*arguments)


@pytest.mark.parametrize("command", ["check", "explain", "whatif"])
def test_a_run_without_a_gpu(command: str, tmp_path: Path) -> None:
    run = tmp_path / "run.yaml"
    run.write_text("model: llama-3-8b\nmethod: lora\n")
    done = finegauge(command, str(run))
    assert (done.code, done.err) == (20 if command == "check" else 0, "")  # the smallest card decides
    assert " on L4, " in done.out if command == "check" else " on A40, " in done.out  # the first that is safe
    assert "gpu A40 (predicted)" in finegauge("compare", str(run), str(run)).out


def test_no_arguments_show_what_one_can_do() -> None:
    done = finegauge()
    assert done.code == 64
    for command in FIRST:
        assert command in done.err
        assert command.split()[1] in COMMANDS


def test_every_command_is_in_one_group_of_the_help_and_known_by_its_beginning() -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(COMMANDS)
    assert finegauge("est", "llama-3-8b", "--gpu", "a40").out.startswith("Fits")
    assert "No such command 'm'" in refused("m")  # several begin so


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("finegauge est", "estimate"),
        ("finegauge estimate qwen3-8", "qwen3-8b"),
        ("finegauge estimate qwen3-8b --gpu rtx40", "RTX4090"),
        ("finegauge estimate qwen3-8b micro", "micro_batch_size="),
        ("finegauge estimate no-such-model-is-known", "file,"),
    ],
)
def test_a_shell_completes(line: str, offered: str) -> None:
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    assert offered in shell(**asked, _FINEGAUGE_COMPLETE="bash_complete").out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_script(shell: str) -> None:
    done = finegauge("completion", shell)
    assert done.code == 0
    assert done.out.startswith(f"# finegauge completion {shell}")
    assert "_FINEGAUGE_COMPLETE" in done.out


def test_a_process_says_it_too() -> None:
    done = shell("estimate", "no-such-file.yaml")
    assert done.code == 64
    assert done.out == ""
    assert len(done.err.splitlines()) == 1


def fail(*_: object, **__: object) -> None:
    """Fail as no code of ours should."""
    raise ZeroDivisionError("of our own making")


def test_an_error_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FINEGAUGE_DEBUG", raising=False)
    monkeypatch.setattr("finegauge.cli.root.main", fail)
    done = finegauge("estimate", MIXTRAL)
    assert done.code == 70
    assert "internal error (ZeroDivisionError: of our own making)" in done.err
    assert "Traceback" not in done.err


def test_debugging_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINEGAUGE_DEBUG", "1")
    monkeypatch.setattr("finegauge.cli.root.main", fail)
    with pytest.raises(ZeroDivisionError):
        cli.main(["estimate", MIXTRAL])


def test_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("finegauge.cli.root.main", interrupt)
    done = finegauge("estimate", MIXTRAL)
    assert done.code == 130
    assert done.err == ""


def test_a_reader_that_leaves_is_no_error() -> None:
    command = f"{sys.executable} -m finegauge explain {MIXTRAL} | true"
    done = subprocess.run(
        ["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr == ""


@pytest.mark.parametrize("command", ["gpus", "--help", "estimate llama-3-8b --gpu a40 --json"])
def test_output_without_room_is_a_sentence(command: str) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "finegauge", *command.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert (done.returncode, done.stderr) == (
        64, b"Error: The output cannot be written: No space left on device.\n",
    )  # fmt: skip


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "2>/dev/full"])
@pytest.mark.parametrize(("command", "code"), [("gpus", 0), ("estimate no-such-model", 64)])
def test_a_stream_that_is_closed_changes_no_exit_code(command: str, closed: str, code: int) -> None:
    line = f'"{sys.executable}" -m finegauge {command} {closed}'
    done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "internal error" not in done.stderr
