package ui

import "github.com/effectonce/effectonce/internal/doctor"

// command is a relay command on this database, as a shell takes it.
func (d *database) command(args ...string) string { return doctor.Command(d.Flags, d.Schema, args...) }

// withReason adds the place of a reason to a command that is not run yet.
func (d *database) withReason(args ...string) string { return d.command(args...) + doctor.Reason }

// parked begins the commands of parked events.
func parked(where, verb string, args ...string) []string {
	words := []string{"parked", verb}
	if where == inInbox {
		words = []string{"inbox", "parked", verb}
	}
	return append(words, args...)
}
