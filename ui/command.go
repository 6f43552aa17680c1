package ui

import (
	"slices"
	"strings"

	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/ui/verbs"
)

// command returns a relay command for this database, quoted for a shell.
func (d *database) command(args ...string) string { return doctor.Command(d.Flags, d.Schema, args...) }

// withReason is command with a placeholder for the reason.
func (d *database) withReason(args ...string) string { return d.command(args...) + doctor.Reason }

// commandOf returns the command of a verb. names are flags that name its operator, or wait for a person's value.
func commandOf[O any](d *database, v verbs.Of[O], names ...string) string {
	return d.withReason(argsOf(v, names...)...)
}

func argsOf[O any](v verbs.Of[O], names ...string) []string {
	return slices.Concat(strings.Fields(v.Verb().Command), names, verbs.Flags(v))
}

// parked returns the arguments of a command for parked events.
func parked(where, verb string, args ...string) []string {
	return append(strings.Fields(verbs.Side(where).Command(verb)), args...)
}
