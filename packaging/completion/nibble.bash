# bash completion for nibble. The program itself knows what may follow; see programs/complete.h.
_nibble()
{
    local words=() line found word i
    for ((i = 1; i <= COMP_CWORD; i++)); do
        [[ ${COMP_WORDS[i]} == = ]] || words+=("${COMP_WORDS[i]}")
    done
    # bash makes words of their own of "--kv", "=" and what follows.
    [[ ${COMP_WORDS[COMP_CWORD]} == = ]] && words+=("")
    word=${words[${#words[@]} - 1]}
    COMPREPLY=()
    while IFS= read -r line; do
        case $line in
        :files) mapfile -t found < <(compgen -f -- "$word"); compopt -o filenames 2>/dev/null; COMPREPLY+=("${found[@]}") ;;
        :folders) mapfile -t found < <(compgen -d -- "$word"); compopt -o filenames 2>/dev/null; COMPREPLY+=("${found[@]}") ;;
        *) COMPREPLY+=("${line%%$'\t'*}") ;;
        esac
    done < <("${COMP_WORDS[0]/#\~/$HOME}" --complete "${words[@]}" 2>/dev/null)
}
complete -F _nibble nibble
