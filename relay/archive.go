package relay

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/pgschema"
	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

const (
	archiveAhead = 7 // days that are made ahead of time

	// archiveLockTimeout is the lock timeout of a change of the archive. Settles wait behind it.
	archiveLockTimeout = "200ms"

	// archiveBatch bounds a statement that cleans the default partition.
	archiveBatch = 10_000

	// archiveScan is how long a change may hold a table's lock: to attach a day, Postgres reads the whole default
	// partition.
	archiveScan = "2s"

	archiveEvery = time.Hour
)

// Archived is the result of one pass over the archive.
type Archived struct {
	Made    []string `json:"made"`    // days, as 20260102
	Dropped []string `json:"dropped"` // days
	Cleaned int64    `json:"cleaned"` // rows of the default partition that were too old
	// Left are days that could not be made or dropped now: a lock was not free, or the default partition has rows of
	// them already, or too many to be read in 2 s. Nothing is lost by it; the next pass tries again.
	Left []string `json:"left"`
}

// MaintainArchive makes the coming days of the archive and drops those that are older than keepDays (at least 1), in
// UTC. It must run as the owner of the tables: call it daily at least, or let the relays do it, or run `relay archive
// maintain`. It waits for no lock longer than 200 ms and holds none longer than 2 s, because settles wait behind it.
// Several may run at once: one of them works.
func (o *Outbox) MaintainArchive(ctx context.Context, keepDays int) (Archived, error) {
	if keepDays < 1 {
		return Archived{}, fmt.Errorf("relay: an archive of %d days: want at least 1", keepDays)
	}
	a := archivist{of: o, keep: keepDays}
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

// archivist makes and drops the days of one archive.
type archivist struct {
	of   *Outbox
	keep int
}

func (a archivist) pass(ctx context.Context) (done Archived, err error) {
	var prefix string
	var today int
	var have []string
	if err := a.of.db.QueryRow(ctx, a.of.schema.Expand(sql.ArchiveDays)).Scan(&prefix, &today, &have); err != nil {
		return done, err
	}
	for day := today; day <= today+archiveAhead; day++ {
		if name := archiveDay(day); !slices.Contains(have, "outbox_archive_"+name) {
			made, err := a.change(ctx, prefix, day, sql.MakeArchiveDay, sql.AttachArchiveDay)
			if err != nil {
				return done, fmt.Errorf("making day %s: %w", name, err)
			}
			done.note(made, &done.Made, name)
		}
	}
	first := today - a.keep
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
		tag, err := a.of.db.Exec(ctx, a.of.schema.Expand(sql.CleanArchive), archiveStart(first), archiveBatch)
		if err != nil {
			return done, fmt.Errorf("cleaning the default partition: %w", err)
		}
		done.Cleaned += tag.RowsAffected()
		if tag.RowsAffected() < archiveBatch {
			break
		}
	}
	return done, nil
}

func (d *Archived) note(ok bool, list *[]string, day string) {
	if !ok {
		list = &d.Left
	}
	*list = append(*list, day)
}

// change runs statements about one day in a transaction. It returns false if they cannot run now; then nothing has
// changed.
func (a archivist) change(ctx context.Context, prefix string, day int, statements ...string) (bool, error) {
	text := strings.NewReplacer(pgschema.Placeholder, prefix, "{day}", archiveDay(day),
		"{from}", archiveStart(day).Format(time.RFC3339), "{to}", archiveStart(day+1).Format(time.RFC3339))
	mine := false
	err := pgx.BeginTxFunc(ctx, a.of.db, pgx.TxOptions{}, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, a.of.schema.Expand(sql.ArchiveLock), archiveLockTimeout, archiveScan).Scan(nil, nil,
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

func archiveStart(day int) time.Time { return time.Unix(int64(day)*86400, 0).UTC() }

func archiveDay(day int) string { return archiveStart(day).Format("20060102") }

// queueSettled settles lanes whose events are all acked and in the outbox: they are deleted, or moved to the archive.
func (r *Relay) queueSettled(b *pgx.Batch, set *settling, k *laneKeys) *pgx.QueuedQuery {
	if r.cfg.ArchiveDays > 0 {
		return b.Queue(r.sql(sql.SettleArchived), k.lanes, k.fences, r.owner, k.firsts, set.epoch)
	}
	return b.Queue(r.sql(sql.Settle), k.lanes, k.fences, r.owner, k.firsts)
}

// queueAcked does the same with the acked events of other lanes.
func (r *Relay) queueAcked(b *pgx.Batch, set *settling, k *laneKeys) {
	a := &set.acked
	if r.cfg.ArchiveDays > 0 {
		b.Queue(r.sql(sql.SettleAckedArchived), k.lanes, k.fences, r.owner, k.firsts, a.lanes, a.ids, a.seqs, set.epoch)
		return
	}
	b.Queue(r.sql(sql.SettleAcked), k.lanes, k.fences, r.owner, k.firsts, a.lanes, a.ids)
}

// keepArchive maintains the archive until ctx ends.
func (r *Relay) keepArchive(ctx context.Context) {
	of, said := &Outbox{r.db, r.schema}, false
	for ctx.Err() == nil {
		done, err := of.MaintainArchive(ctx, r.cfg.ArchiveDays)
		switch {
		case err != nil && ctx.Err() == nil && !said:
			said = true
			r.log.Warn("the archive's days are not looked after; published events go into its default partition "+
				"until they are", "error", err)
		case err == nil:
			said = false
			level := slog.LevelDebug
			if len(done.Made)+len(done.Dropped) > 0 {
				level = slog.LevelInfo
			}
			r.log.Log(ctx, level, "the archive is maintained", "made", len(done.Made), "dropped", len(done.Dropped),
				"left", len(done.Left))
		}
		_ = sleep.For(ctx, archiveEvery)
	}
}
