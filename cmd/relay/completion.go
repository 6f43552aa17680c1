package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// scripts ask the program itself what may stand at the cursor, so they are of any version.
var scripts = map[string]string{
	"bash": `_relay() {
	local IFS=$'\n'
	COMPREPLY=($(relay complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _relay relay
`,
	// As a file _relay of the fpath it is loaded by the first completion.
	"zsh": `#compdef relay
_relay() {
	local -a found
	found=(${(f)"$(relay complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)"})
	(( $#found )) && compadd -a found || _files
}
if [[ $funcstack[1] == _relay ]]; then _relay; else compdef _relay relay; fi
`,
	"fish": `function __relay
	set -l words (commandline -opc) (commandline -ct)
	relay complete -- $words[2..] 2>/dev/null
end
complete -c relay -a '(__relay)'
`,
	// Windows PowerShell drops an empty argument, so "=" stands for it.
	"powershell": `Register-ArgumentCompleter -Native -CommandName relay -ScriptBlock {
	param($word, $line, $cursor)
	$before = @($line.CommandElements | Select-Object -Skip 1 |
		Where-Object { $_.Extent.EndOffset -lt $cursor } | ForEach-Object { "$_" })
	$last = if ($word) { $word } else { '=' }
	relay complete -- @before $last 2>$null |
		ForEach-Object { [System.Management.Automation.CompletionResult]::new($_) }
}
`,
}

type completionCommand struct {
	Shell string `arg:"" enum:"bash,zsh,fish,powershell" help:"bash, zsh, fish or powershell."`
}

// Help is shown below the command's line.
func (completionCommand) Help() string {
	return `  bash         source <(relay completion bash)                               in ~/.bashrc
  zsh          source <(relay completion zsh)                                in ~/.zshrc, after compinit
  fish         relay completion fish | source                                in ~/.config/fish/config.fish
  powershell   relay completion powershell | Out-String | Invoke-Expression  in $PROFILE`
}

func (completionCommand) noDatabase() {}

func (c completionCommand) run(_ context.Context, p *program) error {
	_, err := io.WriteString(p.stdout, scripts[c.Shell])
	return err
}

// completeCommand is what the scripts call.
type completeCommand struct {
	Words []string `arg:"" optional:"" help:"The words after relay, up to the cursor."`
}

func (completeCommand) noDatabase() {}

func (c completeCommand) run(_ context.Context, p *program) error {
	for _, word := range completions(p.tree, c.Words) {
		if _, err := fmt.Fprintln(p.stdout, word); err != nil {
			return err
		}
	}
	return nil
}

// completions are the words that can take the last one's place: commands, flags, or values of a flag that lists them.
func completions(node *kong.Node, words []string) []string {
	if len(words) == 0 {
		words = []string{""}
	}
	before, last := words[:len(words)-1], words[len(words)-1]
	var flag *kong.Flag // whose value comes next
	for _, word := range before {
		switch {
		case word == "=": // bash cuts a word there
		case flag != nil:
			flag = nil
		case strings.HasPrefix(word, "--"):
			flag = flagNamed(node, word[2:])
		default:
			node = cmp.Or(childNamed(node, word), node)
		}
	}
	prefix := ""
	if name, value, found := strings.Cut(last, "="); found && strings.HasPrefix(name, "--") {
		flag, prefix, last = flagNamed(node, name[2:]), name+"=", value
	}
	if last == "=" {
		last = ""
	}
	var may []string
	switch {
	case flag != nil:
		may = slices.Collect(maps.Keys(flag.EnumMap()))
	case strings.HasPrefix(last, "-"):
		for _, f := range slices.Concat(node.AllFlags(true)...) {
			may = append(may, "--"+f.Name)
		}
	default:
		if node.Name == "help" {
			may, node = slices.Collect(maps.Keys(topics)), node.Parent
		}
		for _, child := range node.Children {
			if !child.Hidden {
				may = append(may, child.Name)
			}
		}
		for _, positional := range node.Positional {
			may = append(may, slices.Collect(maps.Keys(positional.EnumMap()))...)
		}
	}
	may = slices.DeleteFunc(may, func(word string) bool { return word == "" || !strings.HasPrefix(word, last) })
	for i := range may {
		may[i] = prefix + may[i]
	}
	slices.Sort(may)
	return slices.Compact(may)
}

// flagNamed is a flag of the node that takes a value; nil: there is none, or it takes none.
func flagNamed(node *kong.Node, name string) *kong.Flag {
	for _, f := range slices.Concat(node.AllFlags(false)...) {
		if f.Name == name && !f.IsBool() {
			return f
		}
	}
	return nil
}

func childNamed(node *kong.Node, name string) *kong.Node {
	for _, child := range node.Children {
		if child.Name == name {
			return child
		}
	}
	return nil
}
