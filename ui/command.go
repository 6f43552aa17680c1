package ui

import "github.com/effectonce/effectonce/internal/doctor"

// command returns a relay command for this database, quoted for a shell.
func (d *database) command(args ...string) string { return doctor.Command(d.Flags, d.Schema, args...) }

// withReason is command with a placeholder for the reason.
func (d *database) withReason(args ...string) string { return d.command(args...) + doctor.Reason }

// parked returns the arguments of a command for parked events.
func parked(where, verb string, args ...string) []string {
	words := []string{"parked", verb}
	if where == inInbox {
		words = []string{"inbox", "parked", verb}
	}
	return append(words, args...)
}
