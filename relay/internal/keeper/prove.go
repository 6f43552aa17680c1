package keeper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/pgsession"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// ProvedEvery is how often a relay proves that it can work, and for how long a lane may stand before that is trouble.
const ProvedEvery = time.Minute

// proof is what the last proof found.
type proof struct {
	since time.Time
	err   error // nil: the relay can work
}

// prove has the relay append an event, see it and delete it, in a transaction that is rolled back. Whatever hides
// events from it, takes them away or withdraws a right is found, whatever its cause.
func (k *Keeper) prove(ctx context.Context, s *pg.Session) {
	id := -int64(uuid.New().ID()) - 1 // no claim reads it: ids begin at 1
	var appended, seen, deleted int64
	count := func(n *int64) func(pgconn.CommandTag) error {
		return func(tag pgconn.CommandTag) error { *n = tag.RowsAffected(); return nil }
	}
	batch := pg.Begin(k.Lease, pg.Async, func(b *pgx.Batch) {
		b.Queue(k.SQL(sql.ProveAppend), id).Exec(count(&appended))
		b.Queue(k.SQL(sql.ProveSee), id).QueryRow(func(row pgx.Row) error { return row.Scan(&seen) })
		b.Queue(k.SQL(sql.ProveSettle), id).Exec(count(&deleted))
	})
	batch.Queue(sql.Rollback)
	err := s.Send(ctx, batch)
	switch {
	case err == nil && appended == 0:
		err = errors.New("a trigger of outbox_event takes away what is appended")
	case err == nil && seen == 0:
		err = errors.New("an event that this relay appends is hidden from it")
	case err == nil && deleted == 0:
		err = errors.New("an event that this relay appends cannot be deleted by it")
	case err != nil && !pgerr.Answered(err):
		return // the heartbeat tells of outages
	case pgerr.Within(err):
		// A user's trigger that needs a setting of its producers: that events pass is not known, and not refuted.
		k.Log.Warn("whether this relay can work is not known: a trigger refuses the event that it appends to try",
			"error", err)
		err = nil
	}
	found, was := &proof{since: time.Now(), err: err}, false
	if before := k.proof; before != nil && before.err != nil {
		found.since, was = before.since, true
	}
	k.proof = found
	if (err != nil) != was {
		k.Signals.Beat() // it shows operators the trouble, or its end
	}
	if err != nil {
		k.Log.Error("this relay cannot work: events wait", "error", pgsession.Advise(err))
	}
}

// standing is a lane that no pump has done its work on for longer than a proof may be old.
func (k *Keeper) standing(now time.Time) (since time.Time, err error) {
	lane, since := k.Lanes.Standing(now)
	if since.IsZero() || now.Sub(since) < k.ProvedEvery {
		return since, nil
	}
	return since, fmt.Errorf("lane %d: its work is not done", lane)
}
