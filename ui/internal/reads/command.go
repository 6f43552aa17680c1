package reads

import (
	"slices"
	"strings"

	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/ui/verbs"
)

// Command returns a relay command for this database, quoted for a shell.
func (d *Database) Command(args ...string) string { return doctor.Command(d.Flags, d.Schema, args...) }

// WithReason is Command with a placeholder for the reason.
func (d *Database) WithReason(args ...string) string {
	return d.Command(append(args, doctor.Reason)...)
}

// CommandOf returns the command of a verb. names are flags that name its operator, or wait for a person's value.
func CommandOf[O any](d *Database, v verbs.Of[O], names ...string) string {
	return d.WithReason(ArgsOf(v, names...)...)
}

// ArgsOf returns the arguments of a verb's command.
func ArgsOf[O any](v verbs.Of[O], names ...string) []string {
	return slices.Concat(strings.Fields(v.Verb().Command), names, verbs.Flags(v))
}

// ParkedArgs returns the arguments of a command for parked events.
func ParkedArgs(where, verb string, args ...string) []string {
	return append(strings.Fields(verbs.Side(where).Command(verb)), args...)
}
