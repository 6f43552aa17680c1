package service

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/alecthomas/kong"
)

// help prints a command's manual: what it does, and one table of its settings.
func (c CommandLine) help(_ kong.HelpOptions, ctx *kong.Context) error {
	w := ctx.Stdout
	node := ctx.Selected()
	if node == nil {
		node = ctx.Model.Node
		for _, step := range ctx.Path { // a command that has commands, as in `inbox --help`
			if step.Command != nil {
				node = step.Command
			}
		}
	}
	about := node.Help
	if node == ctx.Model.Node {
		about = c.Description
	}
	fmt.Fprintf(w, "Usage: %s\n", strings.TrimSpace(usage(c.Name, node)))
	if about != "" {
		fmt.Fprintf(w, "\n%s\n", about)
	}
	if node.Detail != "" {
		fmt.Fprintf(w, "\n%s\n", node.Detail)
	}
	if len(node.Children) > 0 {
		commandTable(w, node)
	}
	if err := c.settingTable(w, node); err != nil {
		return err
	}
	if c.Footer != "" {
		fmt.Fprintf(w, "\n%s\n", c.Footer)
	}
	return nil
}

func usage(name string, node *kong.Node) string {
	if node.Type != kong.ApplicationNode {
		name = node.FullPath()
	}
	if len(node.Children) > 0 {
		name += " <command>"
	}
	return name + " [flags]"
}

func commandTable(w io.Writer, node *kong.Node) {
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "\nCOMMAND\tMEANING")
	for _, leaf := range node.Leaves(true) {
		fmt.Fprintf(table, "%s\t%s\n", leaf.Path(), leaf.Help)
	}
	_ = table.Flush()
}

func (c CommandLine) settingTable(w io.Writer, node *kong.Node) error {
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "\nFLAG\tVARIABLE\tDEFAULT\tMEANING")
	groups := node.AllFlags(true)
	// The command's own flags first: Kong lists the application's in front.
	for i := len(groups) - 1; i >= 0; i-- {
		for _, flag := range groups[i] {
			name, variable, def, about := "--"+flag.Name, c.Variable(flag.Name), flag.Default, flag.Help
			switch {
			case flag.Name == "help":
				variable, about = "", "Print this."
			case flag.Name == "version":
				variable = ""
			case isSecret(flag):
				variable += "[_FILE]"
			}
			if shown := flag.Tag.Get("shown"); shown != "" {
				def = shown
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", name, variable, def, about)
		}
	}
	return table.Flush()
}
