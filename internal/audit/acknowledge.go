package audit

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/admin"
)

// Acknowledged is the detail of an acknowledgement in the audit, which keeps it.
func Acknowledged(a admin.Acknowledgement) map[string]any {
	return map[string]any{"check": a.Check, "found": a.Found, "until": a.Until.UTC()}
}

// Acknowledgements returns those that a statement selects.
func (p *Person) Acknowledgements(ctx context.Context, statement string) ([]admin.Acknowledgement, error) {
	return List(ctx, p, "reading what is acknowledged", func(row pgx.CollectableRow) (a admin.Acknowledgement,
		err error,
	) {
		err = row.Scan(&a.Check, &a.Found, &a.Operator, &a.Reason, &a.Until)
		return a, err
	}, statement, Acknowledge)
}
