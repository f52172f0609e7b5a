#compdef nibble
# zsh completion for nibble. The program itself knows what may follow; see programs/complete.h.
_nibble() {
    local line
    local -a names texts
    for line in "${(@f)$(${(Q)words[1]} --complete "${(@Q)words[2,CURRENT]}" 2>/dev/null)}"; do
        case $line in
        '') ;;
        :files) _files ;;
        :folders) _files -/ ;;
        *) names+=("${line%%$'\t'*}"); texts+=("${line%%$'\t'*}  ${line#*$'\t'}") ;;
        esac
    done
    (( $#names )) && compadd -l -d texts -- "${names[@]}"
}
_nibble "$@"
