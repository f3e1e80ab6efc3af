"""Completion for a shell: commands, options, plan words, presets, devices, labs, settings.

    bash: eval "$(stepladder completion bash)"      in ~/.bashrc
    zsh:  eval "$(stepladder completion zsh)"       in ~/.zshrc, after compinit
    fish: stepladder completion fish | source       in ~/.config/fish/config.fish

What is printed is a few lines that ask this very command at every Tab, so they never grow old.
"""

from __future__ import annotations

import argparse
import re

from stepladder.cli.completion_candidates import Candidate, Typed, candidates

BASH = r"""_stepladder() {
    local found
    COMPREPLY=()
    while IFS= read -r found; do
        COMPREPLY+=("$found")
    done < <("$1" completion bash --line "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=/.] ]]; then
        compopt -o nospace 2>/dev/null
    fi
}
complete -F _stepladder stepladder
"""

ZSH = r"""#compdef stepladder
_stepladder() {
    local -a whole open
    local line word asked="${(j: :)words[1,CURRENT]}"
    for line in "${(@f)$("${words[1]}" completion zsh --line "$asked" 2>/dev/null)}"; do
        word="${line%%$'\t'*}"
        if [[ $word == *[=/.] ]]; then
            open+=("$word")
        elif [[ -n $word ]]; then
            whole+=("${word//:/\\:}${${(M)line:#*$'\t'*}:+:${line#*$'\t'}}")
        fi
    done
    (( $#whole )) && _describe stepladder whole
    (( $#open )) && compadd -S '' -a open
}
compdef _stepladder stepladder
"""

FISH = r"""function _stepladder
    stepladder completion fish --line (commandline -cp | string collect) 2>/dev/null
end
complete -c stepladder -f -a '(_stepladder)'
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("shell", choices=list(SCRIPTS))
    parser.add_argument("--line", metavar="TEXT", help="what is typed: prints how it may go on")


def run(options: argparse.Namespace) -> int:
    if options.line is None:
        print(SCRIPTS[options.shell], end="")
        return 0
    typed = Typed.read(options.line)
    if typed is not None:
        write = for_bash if options.shell == "bash" else with_sentence
        for candidate in candidates(typed):
            print(write(candidate, typed))
    return 0


def for_bash(candidate: Candidate, typed: Typed) -> str:
    """What takes the place of the letters that bash counts as the word at the cursor."""
    if typed.quote:
        return candidate.text
    # Bash breaks words at = and : too, and replaces only what follows the last of them.
    known = re.match(r".*[=:]", typed.last)
    rest = candidate.text[known.end() if known else 0 :]
    return re.sub(r"([\s'\"\\$&;()<>|*?`])", r"\\\1", rest)


def with_sentence(candidate: Candidate, typed: Typed) -> str:
    """The word and what zsh and fish show beside it."""
    return f"{candidate.text}\t{candidate.about}" if candidate.about else candidate.text
