package operator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// ErrSlotInUse: a relay reads the replication slot.
var ErrSlotInUse = errors.New("a relay reads the replication slot: stop it, or run it with the table as its feed")

// ErrPublicationLeft: the slot is dropped, and the publication, which keeps no WAL, is another role's.
var ErrPublicationLeft = errors.New("the replication slot is dropped; the publication is left, for only the owner of " +
	"the tables may drop it: run this again as that one")

// SetUpWAL makes or corrects the publication that relays with [FeedWAL] read, and returns its name, which is also
// that of their replication slot. It must run as the owner of the tables, with CREATE on the database. The relays make
// the slot. An empty schema is the connection's search_path.
func SetUpWAL(ctx context.Context, db *pgxpool.Pool, schema string) (name string, err error) {
	in, err := sql.For(schema)
	if err != nil {
		return "", fmt.Errorf("relay: %w", err)
	}
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		var exists, owned bool
		if err := tx.QueryRow(ctx, in.Expand(sql.Publication)).Scan(&name, &exists, &owned); err != nil {
			return err
		}
		statements := []string{sql.Publish}
		if exists {
			statements = []string{sql.PublishTables, sql.PublishInserts}
		}
		for _, statement := range statements {
			if _, err := tx.Exec(ctx, named(in.Expand(statement), name)); err != nil {
				return err
			}
		}
		return nil
	})
	if pgerr.Is(err, pgerr.InsufficientPrivilege) {
		err = fmt.Errorf("run this as the owner of the tables, with CREATE on the database: %w", err)
	}
	if err != nil {
		return "", fmt.Errorf("relay: making the publication: %w", err)
	}
	return name, nil
}

// DropWAL drops the replication slot and the publication, for when no relay will read the WAL any more: an unread slot
// keeps all WAL from then on. Lanes are first given back to the table; if a relay has ended without doing that, a new
// numbering begins. It needs the relays' role with REPLICATION, and only the owner of the tables may drop the
// publication: for others it fails with [ErrPublicationLeft] after all other steps. It fails with [ErrSlotInUse] while
// a relay reads the slot.
func DropWAL(ctx context.Context, db *pgxpool.Pool, schema string) (name string, err error) {
	in, err := sql.For(schema)
	if err != nil {
		return "", fmt.Errorf("relay: %w", err)
	}
	if err := unread(ctx, db, in); err != nil {
		return "", fmt.Errorf("relay: dropping the replication slot: %w", err)
	}
	var exists, owned bool
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		var left, active bool
		if err := tx.QueryRow(ctx, in.Expand(sql.Publication)).Scan(&name, &exists, &owned); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, in.Expand(sql.WALSlot), name).Scan(&left, &active); err != nil {
			return err
		}
		if active {
			return ErrSlotInUse
		}
		if _, err := tx.Exec(ctx, in.Expand(sql.WALDrop), name); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, in.Expand(sql.WALSlot), name).Scan(&left, &active); err != nil {
			return err
		}
		if left {
			return ErrSlotInUse
		}
		for _, statement := range []string{sql.LockLanes, sql.WALGiveUp, sql.WALForget} {
			if _, err := tx.Exec(ctx, in.Expand(statement)); err != nil {
				return err
			}
		}
		if owned {
			_, err = tx.Exec(ctx, named(in.Expand(sql.Unpublish), name))
		}
		return err
	})
	if err == nil && exists && !owned {
		err = ErrPublicationLeft
	}
	if err != nil {
		return "", fmt.Errorf("relay: dropping the replication slot: %w", err)
	}
	return name, nil
}

// unread waits a moment until no connection reads the slot: the server does not notice at once that a relay is gone.
func unread(ctx context.Context, db *pgxpool.Pool, in *sql.Schema) error {
	const timeout = 2 * time.Second
	for since := time.Now(); time.Since(since) < timeout && ctx.Err() == nil; _ = sleep.For(ctx, timeout/40) {
		var name string
		var exists, owned, left, active bool
		if err := db.QueryRow(ctx, in.Expand(sql.Publication)).Scan(&name, &exists, &owned); err != nil {
			return err
		}
		if err := db.QueryRow(ctx, in.Expand(sql.WALSlot), name).Scan(&left, &active); err != nil || !active {
			return err
		}
	}
	return nil
}

// named replaces the publication's name: DDL takes no parameters. It is derived from the outbox's id.
func named(statement, name string) string {
	return strings.ReplaceAll(statement, "{publication}", name)
}
