# Shared by scripts/quickstart and scripts/test: the environment in .venv, made from requirements.lock.
#
# To be read with `source`. Then `prepare run` or `prepare test` makes .venv ready; when it is, that takes a few
# milliseconds. CMAKE_ARGS and LLAMA_WHEEL choose how the engine is got (README, "A faster engine").

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
lock=$root/requirements.lock
venv=$root/.venv
built_with=$venv/aerix-engine     # how the engine in .venv was got
unfinished=$venv/aerix-unfinished # stands while a set-up runs, and says what engine is wanted
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_USER=0

say() { printf '%s\n' "$*" >&2; }

# Say in a sentence why it cannot go on. 3 is Aerix's exit code for what the user has to set right.
give_up() {
    say "$*"
    exit 3
}

# timed NAME COMMAND…: run it, then say how long it took; what takes no time is not worth a line.
timed() {
    local name=$1 begin=${EPOCHREALTIME/[.,]/} tenths
    shift
    "$@"
    tenths=$(((${EPOCHREALTIME/[.,]/} - begin) / 100000))
    if ((tenths > 0)); then say "$(printf '%-36s %5d.%d s' "$name" $((tenths / 10)) $((tenths % 10)))"; fi
}

# --- what the machine lacks ---

# install_with APT DNF PACMAN: the command that installs it here.
install_with() {
    if command -v apt-get >/dev/null; then
        echo "sudo apt-get install $1"
    elif command -v dnf >/dev/null; then
        echo "sudo dnf install $2"
    elif command -v pacman >/dev/null; then
        echo "sudo pacman -S $3"
    else
        echo "your system's package manager"
    fi
}

need_git() {
    command -v git >/dev/null ||
        give_up "Aerix reads working trees with git, which is missing: install it with $(install_with git git git)."
}

need_python() {
    for python in python3 python3.14 python3.13 python3.12 python3.11; do
        "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break
        python=
    done
    [[ -n $python ]] ||
        give_up "Aerix needs Python 3.11 or newer, and here is $(python3 --version 2>/dev/null || echo none):" \
            "install it with $(install_with 'python3 python3-venv' python3 python)."
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        give_up "$python cannot make environments, because its modules venv and ensurepip are missing: install them" \
            "with $(install_with "python3-venv" python3 python)."
}

need_compiler() {
    local compiler
    for compiler in ${CXX-} c++ g++ clang++; do
        if command -v "$compiler" >/dev/null; then return; fi
    done
    give_up "The engine is built from its sources, and there is no C++ compiler here: install one with" \
        "$(install_with build-essential gcc-c++ base-devel), or name a prebuilt wheel (README, \"A faster engine\")."
}

# --- the engine: llama-cpp-python ---

# What it shall be: what the caller wants now, else what it was last time, else a plain build.
wanted_engine() {
    if [[ -n ${LLAMA_WHEEL-} ]]; then
        echo "wheel $LLAMA_WHEEL"
    elif [[ -n ${CMAKE_ARGS+set} ]]; then
        echo "flags $CMAKE_ARGS"
    elif [[ -f $unfinished ]]; then
        cat "$unfinished"
    elif [[ -f $built_with ]]; then
        cat "$built_with"
    else
        echo "flags "
    fi
}

engine_version() { sed -n 's/^llama-cpp-python==\([^ ;]*\).*/\1/p' "$lock"; }

engine_is_there() {
    [[ $(cat "$built_with" 2>/dev/null) == "$engine" ]] &&
        compgen -G "$venv/lib/python*/site-packages/llama_cpp_python-$(engine_version).dist-info/RECORD" >/dev/null
}

install_engine() {
    if engine_is_there; then return; fi
    "$venv/bin/python" -m pip uninstall --quiet --yes llama-cpp-python 2>/dev/null
    printf '%s\n' "$engine" >"$built_with"
    if [[ $engine == "wheel "* ]]; then
        take_engine "${engine#wheel }"
    else
        build_engine "${engine#flags }"
    fi
}

take_engine() {
    [[ ${1##*/} == llama_cpp_python-"$(engine_version)"[-+%]* ]] ||
        give_up "Aerix needs llama_cpp_python-$(engine_version), and LLAMA_WHEEL names ${1##*/}."
    "$venv/bin/python" -m pip install --quiet --no-deps --no-cache-dir "$1" ||
        give_up "The wheel $1 could not be installed."
}

build_engine() {
    local log=$venv/aerix-build.log cache=()
    need_compiler
    unset CMAKE_ARGS
    # pip's cache knows nothing of flags: a build with some must neither come from it nor go into it.
    if [[ -n $1 ]]; then
        export CMAKE_ARGS=$1
        cache=(--no-cache-dir)
    fi
    install engine -v ${cache[@]+"${cache[@]}"} 2>&1 | show_steps "$log" || {
        tail -n 25 "$log" >&2
        give_up "The engine could not be built; all that was said about it is in $log."
    }
}

# show_steps LOG: of what a build says, show the step it is at: on a terminal in one line, else every tenth of the way.
show_steps() {
    local line shown=-1 tenth
    : >"$1"
    while IFS= read -r line; do
        printf '%s\n' "$line" >>"$1"
        [[ $line =~ ^\ *\[([0-9]+)/([0-9]+)\]\  ]] || continue
        tenth=$((BASH_REMATCH[1] * 10 / BASH_REMATCH[2]))
        if [[ -t 2 ]]; then
            printf '\r  building llama.cpp: step %d of %d ' "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}" >&2
        elif ((tenth > shown)); then
            say "  building llama.cpp: $((tenth * 10)) %"
        fi
        shown=$tenth
    done
    if [[ -t 2 ]] && ((shown >= 0)); then say ""; fi
}

# --- the environment ---

# install SECTION OPTION…: what that section of the lock pins, by hash, built with the build tools of the lock.
install() {
    local file=$venv/aerix-$1.lock
    awk -v section="# [$1]" '/^# \[/ { on = $0 == section } on' "$lock" >"$file"
    shift
    "$venv/bin/python" -m pip install --require-hashes --no-deps --no-build-isolation -r "$file" "$@"
}

new_environment() {
    need_python
    rm -rf "$venv"
    mkdir "$venv"
    printf '%s\n' "$engine" >"$unfinished"
    "$python" -m venv "$venv"
}

install_aerix() {
    "$venv/bin/python" -m pip install -qq --no-deps --no-build-isolation -e "$root"
}

# stamp KIND: changes when anything does that such an environment is made from.
stamp() {
    {
        echo "$1 $engine $root"
        cat "$lock" "$root/setup.cfg" "$root/pyproject.toml"
        "$venv/bin/python" -I -S -c 'import sys; print(sys.version)'
    } 2>/dev/null | sha256sum
}

is_ready() { [[ -f $venv/aerix-ready-$1 && $(<"$venv/aerix-ready-$1") == "$(stamp "$1")" ]]; }

set_up() {
    if [[ -e $unfinished ]]; then say "The last set-up was cut off; starting it again."; fi
    if [[ -e $unfinished ]] || ! "$venv/bin/python" -I -S -c '' 2>/dev/null; then
        timed "an environment in .venv" new_environment
    fi
    printf '%s\n' "$engine" >"$unfinished"
    rm -f "$venv"/aerix-ready-*
    timed "pip" install pip --quiet
    timed "build tools" install build --quiet
    timed "the engine (llama-cpp-python)" install_engine
    timed "what Aerix runs with" install run --quiet
    if [[ $1 == test ]]; then timed "what tests run with" install test --quiet; fi
    timed "Aerix itself" install_aerix
    stamp run >"$venv/aerix-ready-run"
    if [[ $1 == test ]]; then stamp test >"$venv/aerix-ready-test"; fi
    rm "$unfinished"
}

# prepare KIND: make .venv ready to "run" Aerix or to "test" it. Two at once wait for each other.
prepare() {
    local engine
    need_git
    engine=$(wanted_engine)
    if is_ready "$1"; then return; fi
    (
        trap 'say "Interrupted; the next run starts the set-up again."; exit 130' INT
        flock 9
        engine=$(wanted_engine)
        if ! is_ready "$1"; then timed "set-up in all" set_up "$1"; fi
    ) 9<"$lock" >&2
}
