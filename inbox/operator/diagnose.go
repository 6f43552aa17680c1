package operator

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/inbox/internal/days"
	"github.com/effectonce/effectonce/inbox/internal/sql"
	"github.com/effectonce/effectonce/internal/pgschema"
)

// Diagnosis is what an inbox shows to who examines it, as `relay doctor` does. It has facts only.
type Diagnosis struct {
	// MissingRights are those that a worker needs and the connection's role lacks, as "table inbox_parked: insert".
	// When there are any, nothing else is filled in.
	MissingRights []string
	// ByStart: the server tells workers neither its system identifier nor its timeline, and is known by the time of its
	// start. Each restart counts as another database: consumers look at their account again.
	ByStart bool
	// DaysAhead is how many days after today have a partition, without a gap; -1: today has none.
	DaysAhead int
	// Missing are days inside the longest window, today included, that have none: ids of those days wait.
	Missing []string
	// Pending are partitions whose DETACH was interrupted; the next maintenance finishes them.
	Pending   []string
	Consumers []ConsumerDiagnosis
}

// ConsumerDiagnosis is one consumer of a Diagnosis.
type ConsumerDiagnosis struct {
	ConsumerState
	Parked      int64 // events that failed, and those behind them
	Quarantined int64
	ParkedKeys  int64
}

// rights are what a worker needs that leaves maintenance to others, or what reading takes of that.
func rights(readsOnly bool) (tables, wants []string) {
	for table, list := range map[string][]string{
		"inbox_message": {"select", "insert", "delete"}, "inbox_message_any": {"select", "insert", "delete"},
		"inbox_consumer": {"select", "insert", "update"}, "inbox_days": {"select"},
		"inbox_parked_key": {"select", "insert", "update", "delete"}, "inbox_parked": {
			"select", "insert", "update",
			"delete",
		},
		"inbox_progress": {"select", "insert", "update", "delete"}, "inbox_watermark": {"select", "insert", "delete"},
		"inbox_numbering": {"select"},
	} {
		for _, want := range list {
			if readsOnly && want != "select" {
				continue
			}
			tables, wants = append(tables, table), append(wants, want)
		}
	}
	return tables, wants
}

// Diagnose examines the inbox of a schema. It changes nothing. An empty schema is the connection's search_path. With
// readsOnly the role is one that only looks, and no worker's: its rights to change something are not asked for.
func Diagnose(ctx context.Context, db *pgxpool.Pool, schema string, readsOnly bool) (Diagnosis, error) {
	prefix, err := pgschema.Prefix(schema)
	if err != nil {
		return Diagnosis{}, fmt.Errorf("inbox: %w", err)
	}
	var d Diagnosis
	tables, wants := rights(readsOnly)
	rows, err := db.Query(ctx, pgschema.Expand(sql.MissingRights, prefix), tables, wants)
	if err == nil {
		d.MissingRights, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	if err != nil {
		return Diagnosis{}, fmt.Errorf("inbox: diagnose: %w", err)
	}
	if len(d.MissingRights) > 0 {
		return d, nil
	}
	if d.DaysAhead, d.Missing, d.Pending, err = days.Gaps(ctx, db, prefix); err != nil {
		return Diagnosis{}, err
	}
	if err := db.QueryRow(ctx, pgschema.Expand(sql.ByStart, prefix)).Scan(&d.ByStart); err != nil {
		return Diagnosis{}, fmt.Errorf("inbox: diagnose: %w", err)
	}
	list, err := consumers(ctx, db, prefix, "")
	if err == nil {
		rows, err = db.Query(ctx, pgschema.Expand(sql.Diagnose, prefix))
	}
	if err != nil {
		return Diagnosis{}, fmt.Errorf("inbox: diagnose: %w", err)
	}
	d.Consumers, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (c ConsumerDiagnosis, err error) {
		var name string
		err = row.Scan(&name, &c.Parked, &c.Quarantined, &c.ParkedKeys)
		if i := slices.IndexFunc(list, func(s ConsumerState) bool { return s.Consumer == name }); i >= 0 {
			c.ConsumerState = list[i]
		}
		c.Consumer = name // it may be new since
		return c, err
	})
	if err != nil {
		return Diagnosis{}, fmt.Errorf("inbox: diagnose: %w", err)
	}
	return d, nil
}
