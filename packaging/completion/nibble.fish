# fish completion for nibble. The program itself knows what may follow; see programs/complete.h.
function __nibble_complete
    set -l words (commandline -opc)
    set -l word (commandline -ct)
    for line in ($words[1] --complete $words[2..] "$word" 2>/dev/null)
        switch $line
            case :files
                __fish_complete_path $word
            case :folders
                __fish_complete_directories $word
            case '*'
                echo $line
        end
    end
end
complete -c nibble -f -a '(__nibble_complete)'
