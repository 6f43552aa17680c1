package migrations

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// readOldest asks which is the oldest binary, by its newest migration, that the schema serves; by set. A schema says so
// in a comment on one of the set's tables, which a migration writes that leaves older binaries behind. A comment is
// part of every dump, needs no right to be read, and a person sees it in \d+.
func readOldest(ctx context.Context, db DB, schema string) (map[int64]int64, error) {
	rows, err := db.Query(ctx, queryOldest, schema)
	if err != nil {
		return nil, fmt.Errorf("migrations: read the oldest binaries that schema %q serves: %w", schema, err)
	}
	versions, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, fmt.Errorf("migrations: read the oldest binaries that schema %q serves: %w", schema, err)
	}
	oldest := map[int64]int64{}
	for _, v := range versions {
		oldest[v/setSize] = max(oldest[v/setSize], v)
	}
	return oldest, nil
}

// newer refuses a schema that has left this binary behind. One that says nothing is taken to serve the binary one
// version back, and no older one.
func (p plan) newer(have state) error {
	for _, set := range p.sets() {
		unknown := p.unknown(have, set)
		if len(unknown) == 0 {
			continue
		}
		mine, last := p.newest(set), unknown[len(unknown)-1]
		oldest, said := have.oldest[mine/setSize]
		if !said {
			oldest = last - 1
		}
		if mine < oldest {
			return fmt.Errorf("migrations: %w: set %s of schema %q is at version %d and serves binaries from %d on; "+
				"this one knows %d: start a newer binary",
				ErrNewer, set, have.schema, last, oldest, mine)
		}
	}
	return nil
}
