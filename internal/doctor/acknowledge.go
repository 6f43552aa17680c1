package doctor

import (
	"context"
	"regexp"

	"github.com/effectonce/effectonce/admin"
	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/relay/operator"
)

// Acknowledged returns the acknowledgements of now. Without an answer there are none: every finding is seen.
func Acknowledged(ctx context.Context, s Subject) []admin.Acknowledgement {
	out, err := operator.New(s.DB, s.Schema, "doctor")
	if err != nil {
		return nil
	}
	list, err := out.Acknowledgements(ctx)
	if !pgerr.Absent(err) {
		return list
	}
	in, err := inboxoperator.New(s.DB, s.Schema, "", "doctor")
	if err != nil {
		return nil
	}
	list, _ = in.Acknowledgements(ctx)
	return list
}

var digits = regexp.MustCompile(`[0-9]+`)

// Mark marks the findings that are acknowledged: warnings with the same words, whatever their figures. A failure has to
// be mended.
func Mark(list []Finding, acks []admin.Acknowledgement) {
	words := func(s string) string { return digits.ReplaceAllString(s, "0") }
	for i, f := range list {
		for _, a := range acks {
			if f.Severity == Warn && a.Check == f.Check && words(a.Found) == words(f.Found) {
				list[i].Acknowledged = &a
			}
		}
	}
}
