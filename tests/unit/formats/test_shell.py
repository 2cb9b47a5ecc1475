"""Words of the shell as FineGauge reads them, against those of bash itself."""

import shutil
import subprocess

import pytest

from finegauge.formats.shell import Shell

SCRIPTS = (
    "A=4; B=2; run $(( ${A} * 2 )) $((A/B)) $(( A > 2 ? 8 : 1 )) $(( (A + B) % 4 )) $((2 ** 10))",
    "N=3; (( N *= 2 )); let M=N+1; ((N++)); run $N $M",
    "M=Qwen/Qwen3-8B/; M=${M%/}; run ${M##*/} ${M%%/*} ${M#*/} ${M^^} ${M,,} ${M/Qwen/q} ${M//w/W} ${#M}",
    "G=0,1,2; C=${G//[^,]/}; run $((${#C} + 1)) ${G:0:1} ${G: -1} ${G:2}",
    'L=(a b c d); run ${#L[@]} ${L[1]} ${L[@]:1:2} ${!L[@]} "${L[*]}"; i=2; run ${L[i]} ${L[$((i - 1))]}',
    "declare -A T=([x]=1 [y]=2); T[z]=3; k=z; run ${T[$k]} ${T[x]}",
    'A=5; N=A; run ${!N} ${B:-7} ${B:+no} ${A:+yes} "${B-}"; : ${B:=9}; run $B',
    "set -- a b c; shift; run $# $1 ${@:2}; for x; do run $x; done",
    "for i in 1 2 3; do [ $i -eq 2 ] && continue; run $i; done; run end",
    "for ((i = 1; i <= 8; i *= 2)); do run $i; if ((i > 3)); then break; fi; done",
    "i=0; while [ $i -lt 3 ]; do i=$((i + 1)); run $i; done; until [ $i -le 1 ]; do ((i--)); run $i; done",
    "set -- -a 1 -bc x; while getopts 'a:bc' o; do run $o $OPTARG; done; shift $((OPTIND - 1)); run $@",
    "set -- --n 4 --m=5 z\nwhile [[ $# -gt 0 ]]; do\ncase $1 in\n--n) N=$2; shift 2;;\n"
    "--m=*) M=${1#*=}; shift;;\n*) break;;\nesac\ndone\nrun $N $M $1",
    "f() {\nlocal x=1\ny=$1\nreturn\ny=2\n}\nx=0\nf 5\nrun $x $y",
    "pick() {\ncase $1 in\na) echo 1 ;;\n*) echo 2 ;;\nesac\n}\nrun $(pick a) `pick b`",
    "S=a:b:c; run $(echo $S | cut -d: -f2) $(cut -d: -f2- <<< $S) $(echo $S | awk -F: '{print NF, $3}')",
    "run $(echo a,b | tr -cd , | wc -c)",
    "run $(seq 2 2 6) $(seq -s, 0 3) $(echo 0,1,2 | tr ',' '\\n' | wc -l) $(printf '%s-%02d' a 7)",
    "run $(basename /a/b.sh .sh) $(expr 6 \\* 7) $(echo '9 / 2' | bc) $(echo Ab | tr A-Z a-z)",
    "run $(echo 'lr: 5' | sed 's/\\(lr:\\).*/\\1 7/')",
    "run $(echo a1b | sed -E 's/([0-9]+)b$/<\\1>/')",
    "run $(echo x.y | sed s/.y/z/) $(echo a-b_c | sed 's/[^a-z]/+/g')",
    "printf -v R '%s-r%d' q 8; read a b <<< '1 2 3'; IFS=, read -ra L <<< '4,5'; run $R $a \"$b\" ${#L[@]}",
    "[[ ab == a* ]] && X=1 || X=2; [[ ab =~ ^b ]] && Y=1 || Y=2; [ -n '' ] || Z=3; run $X $Y $Z",
    "if [[ a == b || c == c ]] && [ 2 -gt 1 ]; then run yes; elif true; then run no; else run never; fi",
    'A=(--x 1)\n# a remark\nA+=(\n  --y "2 3"  # another\n)\nrun "${A[@]}"',
    "C='run --a 1'; $C; eval \"$C --b\"",
    "for m in a b; do\nread -r t <<EOF\nof $m\nEOF\nrun $t\ndone",
)


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
@pytest.mark.parametrize("script", SCRIPTS)
def test_words_are_those_of_bash(script: str) -> None:
    told = f"run() {{ printf '%s|' \"$@\"; echo; }}\n{script}"
    bash = subprocess.run(["bash", "-c", told], capture_output=True, text=True, check=True, timeout=20)
    read = [
        "".join(f"{word}|" for word in one.words[1:])
        for one in Shell(script, "x").commands()
        if one.words[0] == "run"
    ]
    assert read == bash.stdout.splitlines()


def test_what_no_text_tells_stays_as_it_is_written() -> None:
    script = (
        "run $(nvidia-smi -L | wc -l) $(( $UNSET * 2 )) ${UNSET} ${UNSET##*/} $(echo $UNSET | cut -d, -f1)"
    )
    (command,) = Shell(script, "x").commands()
    assert all(word.startswith("$") for word in command.words[1:])
