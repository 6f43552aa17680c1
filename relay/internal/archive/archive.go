// Package archive makes and drops the days of an outbox's archive.
package archive

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/pgschema"
	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

const (
	ahead = 7 // days that are made ahead of time

	// lockTimeout is the lock timeout of a change of the archive. Settles wait behind it.
	lockTimeout = "200ms"

	// batch bounds a statement that cleans the default partition.
	batch = 10_000

	// scan is how long a change may hold a table's lock: to attach a day, Postgres reads the whole default
	// partition.
	scan = "2s"

	every = time.Hour
)

// Done is the result of one pass: relay.Archived.
type Done struct {
	Made, Dropped []string
	Cleaned       int64
	Left          []string
}

// DB is what an Archive uses of a pool or a connection.
type DB interface {
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Archive is the archive of one outbox.
type Archive struct {
	DB     DB
	Schema *sql.Schema
	Days   int // that are kept
}

// Maintain makes the coming days and drops old ones: relay.Outbox.MaintainArchive.
func (a *Archive) Maintain(ctx context.Context) (Done, error) {
	done, err := a.pass(ctx)
	if pgerr.Is(err, pgerr.InsufficientPrivilege) {
		err = fmt.Errorf("this role may not make or drop days: run `relay archive maintain` as the owner of the "+
			"tables, daily: %w", err)
	}
	if err != nil {
		return done, fmt.Errorf("relay: maintaining the archive: %w", err)
	}
	return done, nil
}

func (a *Archive) pass(ctx context.Context) (done Done, err error) {
	var prefix string
	var today int
	var have []string
	if err := a.DB.QueryRow(ctx, a.Schema.Expand(sql.ArchiveDays)).Scan(&prefix, &today, &have); err != nil {
		return done, err
	}
	for day := today; day <= today+ahead; day++ {
		if name := dayOf(day); !slices.Contains(have, "outbox_archive_"+name) {
			made, err := a.change(ctx, prefix, day, sql.MakeArchiveDay, sql.AttachArchiveDay)
			if err != nil {
				return done, fmt.Errorf("making day %s: %w", name, err)
			}
			done.note(made, &done.Made, name)
		}
	}
	first := today - a.Days
	for _, table := range have {
		name := strings.TrimPrefix(table, "outbox_archive_")
		day, err := time.Parse("20060102", name)
		if err != nil || int(day.Unix()/86400) >= first {
			continue
		}
		dropped, err := a.change(ctx, prefix, int(day.Unix()/86400), sql.DropArchiveDay)
		if err != nil {
			return done, fmt.Errorf("dropping day %s: %w", name, err)
		}
		done.note(dropped, &done.Dropped, name)
	}
	for {
		tag, err := a.DB.Exec(ctx, a.Schema.Expand(sql.CleanArchive), startOf(first), batch)
		if err != nil {
			return done, fmt.Errorf("cleaning the default partition: %w", err)
		}
		done.Cleaned += tag.RowsAffected()
		if tag.RowsAffected() < batch {
			break
		}
	}
	return done, nil
}

func (d *Done) note(ok bool, list *[]string, day string) {
	if !ok {
		list = &d.Left
	}
	*list = append(*list, day)
}

// change runs statements about one day in a transaction. It returns false if they cannot run now; then nothing has
// changed.
func (a *Archive) change(ctx context.Context, prefix string, day int, statements ...string) (bool, error) {
	text := strings.NewReplacer(pgschema.Placeholder, prefix, "{day}", dayOf(day),
		"{from}", startOf(day).Format(time.RFC3339), "{to}", startOf(day+1).Format(time.RFC3339))
	mine := false
	err := pgx.BeginTxFunc(ctx, a.DB, pgx.TxOptions{}, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, a.Schema.Expand(sql.ArchiveLock), lockTimeout, scan).Scan(nil, nil,
			&mine); err != nil || !mine {
			return err
		}
		for _, sql := range statements {
			if _, err := tx.Exec(ctx, text.Replace(sql)); err != nil {
				return err
			}
		}
		return nil
	})
	switch pgerr.Code(err) {
	case pgerr.LockNotAvailable, // a lock was not free in time
		pgerr.QueryCanceled,  // the default partition has too many rows to be read under it
		pgerr.CheckViolation, // the default partition has rows of this day
		pgerr.DuplicateTable: // another session has made it meanwhile
		return false, nil
	}
	return mine && err == nil, err
}

func startOf(day int) time.Time { return time.Unix(int64(day)*86400, 0).UTC() }

func dayOf(day int) string { return startOf(day).Format("20060102") }

// Run maintains the archive until ctx ends.
func (a *Archive) Run(ctx context.Context, log *slog.Logger) {
	said := false
	for ctx.Err() == nil {
		done, err := a.Maintain(ctx)
		switch {
		case err != nil && ctx.Err() == nil && !said:
			said = true
			log.Warn("the archive's days are not looked after; published events go into its default partition "+
				"until they are", "error", err)
		case err == nil:
			said = false
			level := slog.LevelDebug
			if len(done.Made)+len(done.Dropped) > 0 {
				level = slog.LevelInfo
			}
			log.Log(ctx, level, "the archive is maintained", "made", len(done.Made), "dropped", len(done.Dropped),
				"left", len(done.Left))
		}
		_ = sleep.For(ctx, every)
	}
}
