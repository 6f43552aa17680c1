package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/audit"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/pgschema"
)

// othersMost bounds how many other outboxes are examined: a database may have one for each tenant.
const othersMost = 50

// otherOutbox is an outbox in another schema of the database.
type otherOutbox struct {
	Schema string
	Open   bool // this role may read it
}

// others looks for outboxes in other schemas that have events and no relay: a producer with another search_path than
// the relay's fills one that no relay reads.
func (f *findings) others(ctx context.Context, s Subject) {
	const check = "other outboxes"
	list, err := audit.Read(ctx, s.DB, pgx.RowToStructByPos[otherOutbox], queryOtherOutboxes, s.Schema)
	if err != nil {
		f.failed(check, err)
		return
	}
	before, looked := len(f.list), 0
	var closed []string
	for _, o := range list {
		if !o.Open {
			closed = append(closed, o.Schema)
			continue
		}
		if looked++; looked > othersMost {
			f.skip(check, fmt.Sprintf("the database has %d, and %d are looked at", len(list), othersMost))
			break
		}
		f.other(ctx, s, o.Schema, check)
	}
	if len(closed) > 0 {
		some := strings.Join(closed[:min(len(closed), 5)], ", ")
		f.skip(check, fmt.Sprintf("whether events wait in %d schemas without a relay is not known, for this role may "+
			"not read them: %s", len(closed), some))
	}
	if len(f.list) == before {
		f.ok(check, "%d in other schemas, none has events and no relay", looked)
	}
}

func (f *findings) other(ctx context.Context, s Subject, schema, check string) {
	prefix, err := pgschema.Prefix(schema)
	var found []struct {
		Events int64
		Served bool
	}
	if err == nil {
		found, err = audit.Read(ctx, s.DB, pgx.RowToStructByPos[struct {
			Events int64
			Served bool
		}], pgschema.Expand(queryOtherOutbox, prefix))
	}
	switch {
	case pgerr.Is(err, pgerr.UndefinedTable): // dropped meanwhile
	case err != nil:
		f.failed(check, fmt.Errorf("schema %s: %w", schema, err))
	case found[0].Events > 0 && !found[0].Served:
		count := fmt.Sprint(found[0].Events)
		if found[0].Events > 1000 {
			count = "more than 1000"
		}
		f.add(Warn, check, fmt.Sprintf("schema %s: %s events, and no relay works there", schema, count), "Nobody "+
			"publishes them. If they are meant for the outbox examined here, a producer has another search_path.",
			"Run a relay for that schema, or mend the producer.")
		if len(f.where) == 0 { // the flags name the examined outbox
			f.list[len(f.list)-1].Command = Command(nil, schema, "status")
		}
	}
}
