package doctor

import (
	"context"
	"regexp"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/admin"
	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/relay/operator"
)

// Acknowledger keeps acknowledgements in the audit of an outbox or, without one, of an inbox.
type Acknowledger struct {
	outbox *operator.Operator
	inbox  *inboxoperator.Operator
}

// NewAcknowledger returns the Acknowledger of a database in the name of a person.
func NewAcknowledger(db *pgxpool.Pool, schema, name string) (a Acknowledger, err error) {
	if a.outbox, err = operator.New(db, schema, name); err == nil {
		a.inbox, err = inboxoperator.New(db, schema, "", name)
	}
	return a, err
}

// Acknowledge keeps an acknowledgement.
func (o Acknowledger) Acknowledge(ctx context.Context, a admin.Acknowledgement, reason string) error {
	err := o.outbox.Acknowledge(ctx, a, reason)
	if pgerr.Absent(err) {
		err = o.inbox.Acknowledge(ctx, a, reason)
	}
	return err
}

// Acknowledged returns the acknowledgements of now. Without an answer there are none: every finding is seen.
func Acknowledged(ctx context.Context, s Subject) []admin.Acknowledgement {
	o, err := NewAcknowledger(s.DB, s.Schema, "doctor")
	if err != nil {
		return nil
	}
	list, err := o.outbox.Acknowledgements(ctx)
	if pgerr.Absent(err) {
		list, _ = o.inbox.Acknowledgements(ctx)
	}
	return list
}

// word matches a word, and figure one that is a number or a duration: of orders-1, as of any name, the digits count.
var (
	word   = regexp.MustCompile(`[^\s(),;:%]+`)
	figure = regexp.MustCompile(`^([0-9]+(\.[0-9]+)?(h|m|s|ms|µs)?)+$`)
)

func words(found string) string {
	return word.ReplaceAllStringFunc(found, func(w string) string { return figure.ReplaceAllString(w, "0") })
}

// Mark marks the findings that are acknowledged: warnings with the same words, whatever their figures. A failure has to
// be mended.
func Mark(list []Finding, acks []admin.Acknowledgement) {
	for i, f := range list {
		for _, a := range acks {
			if f.Severity == Warn && a.Check == f.Check && words(a.Found) == words(f.Found) {
				list[i].Acknowledged = &a
			}
		}
	}
}
