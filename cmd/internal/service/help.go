package service

import (
	"fmt"
	"strings"

	"github.com/alecthomas/kong"
)

// helpOptions wrap help texts at the terminal's width, at most 120 columns; without a terminal at 80.
var helpOptions = kong.HelpOptions{Compact: true, FlagsLast: true, WrapUpperBound: 120}

// help prints a command's help and the footer.
func (c CommandLine) help(options kong.HelpOptions, ctx *kong.Context) error {
	err := kong.DefaultHelpPrinter(options, ctx)
	if err == nil && c.Footer != "" {
		_, err = fmt.Fprintf(ctx.Stdout, "\n%s\n", c.Footer)
	}
	return err
}

// Meaning returns a flag's help with its variable, and with its default if the value does not show that.
func (c CommandLine) Meaning(v *kong.Value) string {
	if v.Flag == nil || v.Name == "help" || v.Name == "version" {
		return v.Help
	}
	if onLine(v.Flag) {
		return withDefault(v)
	}
	variable := "$" + c.Variable(v.Name)
	if isSecret(v.Flag) {
		variable += "[_FILE]"
	}
	shown := shownDefault(v)
	switch shown {
	case "":
	case "required":
		variable = "required; " + variable
	default:
		variable = "default: " + shown + "; " + variable
	}
	return strings.TrimSpace(v.Help + " (" + variable + ")")
}

// shownDefault returns the default that the value itself does not show, or "required".
func shownDefault(v *kong.Value) string {
	shown := strings.TrimSuffix(strings.TrimPrefix(v.Tag.Get("shown"), "("), ")")
	if shown == "" && (v.Flag.PlaceHolder != "" || v.Default == "true") {
		shown = v.Default
	}
	return shown
}

// withDefault returns a flag's help with its default.
func withDefault(v *kong.Value) string {
	switch shown := shownDefault(v); shown {
	case "":
		return v.Help
	case "required":
		return v.Help + " (required)"
	default:
		return v.Help + " (default: " + shown + ")"
	}
}
