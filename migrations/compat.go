package migrations

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// readOldest returns, by set, the oldest binary that the schema serves, by that binary's newest migration. A migration
// that older binaries cannot work with writes it into a comment on one of the set's tables. A comment is part of every
// dump, can be read without any right, and shows in \d+.
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

// newer refuses a schema that no longer serves this binary. A schema without a comment serves the binary one version
// back, and no older one.
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
