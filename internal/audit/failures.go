package audit

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/admin"
)

// arguments returns the statement's arguments for a filter. An inbox's statement has its consumer before them.
func arguments(f admin.FailureFilter, tenant any) []any {
	at := func(t time.Time) *time.Time {
		if t.IsZero() {
			return nil
		}
		return &t
	}
	kinds := f.Kinds
	if kinds == nil {
		kinds = []string{}
	}
	limit := f.Limit
	if limit <= 0 {
		limit = admin.DefaultLimit
	}
	return []any{tenant, f.Topic, f.Type, f.Code, kinds, at(f.Since), at(f.Until), f.Count, limit}
}

// Failures returns the failures that a statement selects, the longest parked first. tenant is the filter's tenant in
// the statement's type; first are the arguments before the filter's.
func (p *Person) Failures(ctx context.Context, statement string, f admin.FailureFilter, tenant any, first ...any) (
	[]admin.Failure, error,
) {
	return List(ctx, p, "listing failures", func(row pgx.CollectableRow) (u admin.Failure, err error) {
		var tenant, key []byte
		err = row.Scan(&u.Consumer, &tenant, &u.Topic, &key, &u.Alone, &u.ID, &u.Type, &u.Kind, &u.Code, &u.Error,
			&u.Since, &u.Waiting)
		u.Tenant, u.Key = string(tenant), string(key)
		return u, err
	}, statement, append(first, arguments(f, tenant)...)...)
}
