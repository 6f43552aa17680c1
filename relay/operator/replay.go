package operator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/failpoint"
	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

const (
	replayBatch = 500
	replayHead  = 10
	// replayRoom is how many events the outbox may hold before a replay waits: what the business appends comes first.
	replayRoom = 10_000
	replayWait = 200 * time.Millisecond
)

// Replay chooses archived events to publish once more.
type Replay struct {
	// From and To bound when the events were published, To excluded. From is required. A To that is zero or in the future is
	// now, by the database's clock: what the replay itself publishes, which is archived again, must not be chosen again.
	From, To time.Time
	Topic    string  // required
	Key      *string // nil: any
	Tenant   *string // nil: any
	Type     string  // empty: any
	// After is where an earlier replay of the same choice has stopped (ReplayResult.Last). 0: from the beginning. To go on, give
	// its ReplayResult.To as well: what it has published again was published after that.
	After int64
	// Rate bounds the events per second. 0: as fast as the relays publish them.
	Rate int
}

func (c Replay) validate() error {
	switch {
	case c.From.IsZero():
		return errors.New("say from when on: Replay.From")
	case c.Topic == "":
		return errors.New("say which topic: Replay.Topic")
	case !c.To.IsZero() && !c.From.Before(c.To):
		return fmt.Errorf("from %s to %s is nothing", c.From.Format(time.RFC3339), c.To.Format(time.RFC3339))
	case c.Rate < 0 || c.After < 0:
		return fmt.Errorf("a rate of %d after %d: want 0 or more", c.Rate, c.After)
	}
	return nil
}

// ReplayPlan is what a Replay would do.
type ReplayPlan struct {
	Events int64      `json:"events"`
	Bytes  int64      `json:"bytes"` // of payloads
	Keys   int64      `json:"keys"`  // distinct ones, by tenant
	First  *time.Time `json:"first"` // when the first and the last of them were published; nil: there are none
	Last   *time.Time `json:"last"`
	// Head is the first ten of them.
	Head []ReplayEvent `json:"head"`
}

// ReplayEvent is an archived event, without its content.
type ReplayEvent struct {
	Pos         int64     `json:"pos"` // its place in the archive
	PublishedAt time.Time `json:"published_at"`
	MessageID   uuid.UUID `json:"message_id"`
	Tenant      string    `json:"tenant"`
	Key         string    `json:"key"`
	Type        string    `json:"type"`
	Bytes       int       `json:"bytes"` // of the payload; -1: a tombstone
}

// ReplayResult is what a replay has done so far.
type ReplayResult struct {
	Events int64 `json:"events"`
	Last   int64 `json:"last"` // place in the archive of the last one; Replay.After goes on behind it
	// To is where the choice ended: Replay.To, or when the replay began.
	To time.Time `json:"to"`
}

// PlanReplay counts what a Replay would publish and shows its first events. It changes nothing and may take long: the
// archive has no index by topic or key.
func (o *Operator) PlanReplay(ctx context.Context, choice Replay) (p ReplayPlan, err error) {
	if err := choice.validate(); err != nil {
		return p, fmt.Errorf("relay: replay: %w", err)
	}
	args := choice.args(time.Now())
	if err := o.db.QueryRow(ctx, o.q(sql.ReplayPlan), args...).Scan(&p.Events, &p.Bytes, &p.Keys, &p.First, &p.Last); err != nil {
		return p, fmt.Errorf("relay: replay: counting: %w", err)
	}
	rows, err := o.db.Query(ctx, o.q(sql.ReplayHead), append(args, replayHead)...)
	if err == nil {
		p.Head, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (e ReplayEvent, err error) {
			err = row.Scan(&e.Pos, &e.PublishedAt, &e.MessageID, &e.Tenant, &e.Key, &e.Type, &e.Bytes)
			return e, err
		})
	}
	if err != nil {
		return p, fmt.Errorf("relay: replay: reading the first events: %w", err)
	}
	return p, nil
}

func (c Replay) args(now time.Time) []any {
	if c.To.IsZero() {
		c.To = now
	}
	return []any{c.From, c.To, c.Topic, c.Key, c.Tenant, c.Type, c.After}
}

// Replay appends archived events to the outbox once more, in their old order, and leaves the rest to the relays. They keep
// their message ids, so that an inbox which knows them removes them; ids older than its window go to quarantine. They get
// new numbers and stand behind whatever the outbox has: of one key, consumers see old facts after newer ones. They say that they
// are replayed (event.HeaderReplay): a consumer that goes by numbers quarantines them. One without deduplication sees them
// twice.
//
// It works in batches, each a transaction, waits while the outbox is full, and ends early with ctx. Of a replay that ended
// early, Last and To tell how to go on (Replay.After, Replay.To); the error of an unknown commit may have repeated at most one batch. The
// audit has one row at the beginning and one at the end.
func (o *Operator) Replay(ctx context.Context, choice Replay, reason string) (done ReplayResult, err error) {
	if err := choice.validate(); err != nil {
		return done, fmt.Errorf("relay: replay: %w", err)
	}
	done.Last = choice.After
	if choice.To, err = o.replayEnd(ctx, choice.To); err != nil {
		return done, fmt.Errorf("relay: replay: finding its end: %w", err)
	}
	done.To = choice.To
	if err := o.replayAudit(ctx, "replay", choice, done, reason, nil); err != nil {
		return done, err
	}
	err = o.replay(ctx, choice, &done)
	// The audit's own context: a replay that is cut short is exactly what should stand there.
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if auditErr := o.replayAudit(late, "replay ended", choice, done, reason, err); err == nil {
		err = auditErr
	}
	if err != nil {
		return done, fmt.Errorf("relay: replay: after %d events, the last at %d: %w", done.Events, done.Last, err)
	}
	return done, nil
}

// replayEnd is to, or now if that comes first. Under the locks of all lanes: what a settle under way has archived before now
// would be seen, or not, by chance.
func (o *Operator) replayEnd(ctx context.Context, to time.Time) (end time.Time, err error) {
	var until *time.Time
	if !to.IsZero() {
		until = &to
	}
	err = o.begin(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, o.q(sql.Impatient), fencePatience); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, o.q(sql.LockLanes)); err != nil {
			return fmt.Errorf("locking the lanes: %w", err)
		}
		return tx.QueryRow(ctx, o.q(sql.ReplayEnd), until).Scan(&end)
	})
	return end, err
}

func (o *Operator) replay(ctx context.Context, choice Replay, done *ReplayResult) error {
	batch := replayBatch
	if choice.Rate > 0 {
		batch = min(batch, max(choice.Rate/4, 1)) // a few steps a second
	}
	for {
		began := time.Now()
		for room := false; !room; {
			if err := o.db.QueryRow(ctx, o.q(sql.ReplayRoom), replayRoom).Scan(&room); err != nil {
				return fmt.Errorf("looking at the backlog: %w", err)
			}
			if !room {
				_ = sleep.For(ctx, replayWait)
			}
		}
		var n, last int64
		choice.After = done.Last
		err := o.db.QueryRow(ctx, o.q(sql.Replay), append(choice.args(choice.To), batch)...).Scan(&n, &last)
		if err = failpoint.After(failpoint.RelayReplayed, err); err != nil {
			return fmt.Errorf("appending: %w", err)
		}
		if n > 0 {
			done.Events, done.Last = done.Events+n, last
		}
		if n < int64(batch) {
			return nil
		}
		if choice.Rate > 0 {
			_ = sleep.For(ctx, time.Duration(n)*time.Second/time.Duration(choice.Rate)-time.Since(began))
		}
	}
}

func (o *Operator) replayAudit(ctx context.Context, action string, c Replay, done ReplayResult, reason string, failed error) error {
	return o.act(ctx, action, reason, func(pgx.Tx) (audited, error) {
		detail := map[string]any{"from": c.From, "to": c.To, "type": c.Type, "after": c.After}
		if c.Key != nil {
			detail["key"] = *c.Key
		}
		if strings.HasSuffix(action, "ended") {
			detail["events"], detail["last"], detail["complete"] = done.Events, done.Last, failed == nil
		}
		a := audited{topic: c.Topic, detail: detail}
		if c.Tenant != nil {
			a.tenant = *c.Tenant
		}
		return a, nil
	})
}
