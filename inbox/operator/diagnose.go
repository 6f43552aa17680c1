package operator

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/inbox/internal/days"
	"github.com/effectonce/effectonce/inbox/internal/sql"
	"github.com/effectonce/effectonce/internal/audit"
	"github.com/effectonce/effectonce/internal/pgschema"
)

// Diagnosis is the result of examining an inbox, as `relay doctor` does. It has facts only.
type Diagnosis struct {
	// MissingRights are the rights that a worker needs and the connection's role lacks, such as "table inbox_parked:
	// insert". If there are any, the other fields are empty.
	MissingRights []string
	// ByStart: workers cannot read the server's system identifier and timeline, and identify the server by its start
	// time. Each restart then counts as another database, and consumers read their progress again.
	ByStart bool
	// DaysAhead is how many days after today have a partition, without a gap; -1: today has none.
	DaysAhead int
	// Missing are the days within the longest window, including today, that have no partition: ids of those days wait.
	Missing []string
	// Altered says what others have made of the days, and what to do: which of Missing are detached, or were made and
	// are gone with the ids of their events, or that there is a default partition. Maintenance does not mend it: in an
	// empty day each id is new. Empty: nothing.
	Altered string
	// Pending are partitions whose DETACH was interrupted; the next maintenance pass finishes them.
	Pending   []string
	Consumers []ConsumerDiagnosis
}

// ConsumerDiagnosis is one consumer of a Diagnosis.
type ConsumerDiagnosis struct {
	ConsumerState
	Parked      int64 // failed events and the events behind them
	Quarantined int64
	ParkedKeys  int64
	Releasing   int64 // keys, and events that are parked alone, that are released and not taken yet
	// ReleasingFor is for how long a key has been released.
	ReleasingFor time.Duration
	Parks        Parks
}

// Parks is what a consumer has parked within two minutes.
type Parks struct {
	Events int64  // at most 1,000
	Code   string // the most frequent code, of OfCode of them
	OfCode int64
	// Effects is how many events had an effect since the first of these; 1,000 or more: any number.
	Effects int64
}

// rights returns the rights that a worker without maintenance needs; readsOnly: only the rights to read.
func rights(readsOnly bool) (tables, wants []string) {
	for table, list := range map[string][]string{
		"inbox_message": {"select", "insert", "delete"}, "inbox_message_any": {"select", "insert", "delete"},
		"inbox_consumer": {"select", "insert", "update"}, "inbox_days": {"select"},
		"inbox_parked_key": {"select", "insert", "update", "delete"}, "inbox_parked": {
			"select", "insert", "update",
			"delete",
		},
		"inbox_progress": {"select", "insert", "update", "delete"}, "inbox_watermark": {"select", "insert", "delete"},
		"inbox_numbering": {"select"}, "inbox_audit": {"select"},
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

// Diagnose examines the inbox of a schema. It changes nothing. An empty schema means the connection's search_path.
// readsOnly says that the role only reads and is not a worker's: rights to write are not checked.
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
	var altered error
	if d.DaysAhead, d.Missing, d.Pending, altered, err = days.Gaps(ctx, db, prefix); err != nil {
		return Diagnosis{}, err
	}
	if altered != nil {
		d.Altered = altered.Error()
	}
	if err := db.QueryRow(ctx, pgschema.Expand(sql.ByStart, prefix)).Scan(&d.ByStart); err != nil {
		return Diagnosis{}, fmt.Errorf("inbox: diagnose: %w", err)
	}
	list, err := consumers(ctx, db, prefix, "")
	if err != nil {
		return Diagnosis{}, fmt.Errorf("inbox: diagnose: %w", err)
	}
	d.Consumers, err = audit.Read(ctx, db, func(row pgx.CollectableRow) (c ConsumerDiagnosis, err error) {
		var name string
		var releasing float64
		err = row.Scan(&name, &c.Parked, &c.Quarantined, &c.ParkedKeys, &c.Releasing, &releasing, &c.Parks.Events,
			&c.Parks.Code, &c.Parks.OfCode, &c.Parks.Effects)
		c.ReleasingFor = time.Duration(releasing * float64(time.Second))
		if i := slices.IndexFunc(list, func(s ConsumerState) bool { return s.Consumer == name }); i >= 0 {
			c.ConsumerState = list[i]
		}
		c.Consumer = name // a consumer that was registered in between is not in list
		return c, err
	}, pgschema.Expand(sql.Diagnose, prefix))
	if err != nil {
		return Diagnosis{}, fmt.Errorf("inbox: diagnose: %w", err)
	}
	return d, nil
}
